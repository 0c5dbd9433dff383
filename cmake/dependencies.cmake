# Libraries, all from Debian packages (scripts/setup installs them).
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(hwy REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(dnnl REQUIRED)
find_package(ICU REQUIRED COMPONENTS uc i18n)
find_package(PkgConfig REQUIRED)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(lzma REQUIRED IMPORTED_TARGET liblzma)
pkg_check_modules(zlib REQUIRED IMPORTED_TARGET zlib)
# Optional: editing of lines in cairn chat.
pkg_check_modules(libedit libedit)
# Optional: training with several processes.
find_package(MPI COMPONENTS C)

# Optional: the index "ivf" over landmarks. It runs on OpenMP, which the thread sanitizer does not understand.
if(NOT CAIRN_SANITIZE MATCHES "thread")
  find_package(faiss)
endif()

# What programs with the installed library link too stands in cairnConfig.cmake as well; headers alone are for the build.
add_library(cairn_dependencies INTERFACE)
target_link_libraries(cairn_dependencies INTERFACE fmt::fmt spdlog::spdlog hwy::hwy DNNL::dnnl Threads::Threads
                      ICU::i18n ICU::uc PkgConfig::sentencepiece PkgConfig::xxhash PkgConfig::lzma PkgConfig::zlib
                      $<BUILD_INTERFACE:nlohmann_json::nlohmann_json> $<BUILD_INTERFACE:CLI11::CLI11>)
if(NOT CAIRN_SANITIZE MATCHES "thread")
  target_link_libraries(cairn_dependencies INTERFACE OpenMP::OpenMP_CXX)
endif()
