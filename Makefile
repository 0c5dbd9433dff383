# Developers' shortcuts. Everything is built by CMake (CMakePresets.json); the scripts install what is missing.
.DEFAULT_GOAL := help
.PHONY: help build test demo bench books stories tables recall model format format-check debug asan tsan clang fuzz soak soak-sessions lint clean

# The project's own C and C++ files, tracked or new.
SOURCES = $(shell find src apps bench tests include examples -name '*.cc' -o -name '*.h' -o -name '*.hpp' -o -name '*.c' -o -name '*.cpp')

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build:  ## optimised build: build/release/cairn
	@scripts/build

test:  ## build and run every test (the same as scripts/test)
	@scripts/test

demo:  ## build and show what Cairn does (the same as scripts/demo)
	@scripts/demo

bench:  ## build and run the benchmarks
	@scripts/build release cairn_app
	build/release/cairn bench attention
	build/release/cairn bench train

books:  ## train landmark and plain attention on the books of the shared folder (an hour; docs/results)
	@scripts/experiment books

stories:  ## give stories15M landmarks, by full tuning and by LoRA, and pass keys (minutes; docs/results)
	@scripts/experiment stories

tables:  ## train six small models on books and LaTeX and make the paper's tables with them (an hour; docs/results)
	@scripts/experiment tables

recall:  ## what the bundled model finds in books of up to a million tokens (an hour; docs/results)
	@scripts/experiment recall

model:  ## train the bundled model again, in work/tiny (two hours on two cores; resumable)
	@scripts/model

format: dev-tools  ## lay all C++ files out with clang-format
	clang-format -i $(SOURCES)

format-check: dev-tools  ## fail when a file is not laid out
	clang-format --dry-run -Werror $(SOURCES)

debug:  ## tests of the unoptimised build
	@CAIRN_PRESET=debug scripts/test

asan:  ## tests under the address and undefined-behaviour sanitizers
	@CAIRN_PRESET=asan scripts/test

tsan:  ## tests under the thread sanitizer
	@CAIRN_PRESET=tsan scripts/test

clang: dev-tools  ## tests of the build by clang, warnings are errors
	@CI=true CAIRN_PRESET=clang scripts/test

# What the fuzzers find worth keeping stays in build/fuzz/corpus, so the next run goes on from there.
FUZZ_SECONDS ?= 60
fuzz: dev-tools  ## fuzz every reader of files for FUZZ_SECONDS (60) each
	cmake --preset clang -B build/fuzz -DCAIRN_FUZZ=ON -DCAIRN_TESTS=OFF \
	  -DCMAKE_CXX_COMPILER_LAUNCHER=ccache >/dev/null
	cmake --build build/fuzz --target fuzz_targets
	@set -e; for source in tests/fuzz/*_fuzz.cc; do \
	  name=$$(basename $$source .cc); seeds=tests/fuzz/seeds/$${name%_fuzz}; \
	  mkdir -p build/fuzz/corpus/$$name; echo "== $$name, $(FUZZ_SECONDS) s"; \
	  build/fuzz/fuzz/$$name -max_total_time=$(FUZZ_SECONDS) -verbosity=0 -print_funcs=0 -print_final_stats=1 \
	    -artifact_prefix=build/fuzz/$$name- build/fuzz/corpus/$$name $$seeds; \
	done

# The long forms: kills, flipped bits, torn tails, readers beside a writer, full disks.
soak:  ## memory files under kills, damage, readers and full disks (CAIRN_SOAK=3: three times as long)
	@scripts/build release memory_file_test
	@scripts/build release memory_process_test
	CAIRN_SOAK=$${CAIRN_SOAK:-1} nice build/release/tests/memory_file_test
	CAIRN_SOAK=$${CAIRN_SOAK:-1} nice build/release/tests/memory_process_test

soak-sessions:  ## 100,000 random sequences of calls of sessions against the slow reference (or CAIRN_SEQUENCES)
	@scripts/build release session_random_test
	CAIRN_SEQUENCES=$${CAIRN_SEQUENCES:-100000} nice build/release/tests/session_random_test

lint: dev-tools  ## check the shell scripts
	shellcheck scripts/* .ci/run

clean:  ## remove every build
	rm -rf build

.PHONY: dev-tools
dev-tools:
	@scripts/setup --dev
