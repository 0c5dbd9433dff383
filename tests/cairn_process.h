// Real processes of the cairn binary for tests: started, killed, waited for, their resident size measured. And how long
// the long forms of tests are.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "io/file.h"

namespace cairn {

// The short form, or with CAIRN_SOAK=f in the environment f times the long one.
inline size_t SoakRounds(size_t short_form, size_t long_form) {
  const char* text = std::getenv("CAIRN_SOAK");
  if (text == nullptr || *text == '\0') return short_form;
  const double factor = std::atof(text);
  return factor > 0 ? static_cast<size_t>(factor * static_cast<double>(long_form)) : short_form;
}

inline bool IsSoak() { return SoakRounds(0, 1000) > 0; }

struct ProcessResult {
  int code = -1;             // exit code; -1: killed by a signal
  size_t peak_resident = 0;  // bytes, at most; see CairnProcess::Wait
  std::string out, err;
};

// One run of `cairn WORDS` in a directory, with one thread. Standard output and error go to files there.
class CairnProcess {
 public:
  CairnProcess(const std::filesystem::path& directory, const std::vector<std::string>& words,
               const std::string& tag = "")
      : out_(directory / ("out" + tag + ".txt")), err_(directory / ("err" + tag + ".txt")) {
    std::vector<std::string> all{"cairn"};
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> arguments;
    for (std::string& word : all) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    [[maybe_unused]] static const int once = setenv("CAIRN_THREADS", "1", 1);
    // Only what is safe after fork happens in the child.
    pid_ = fork();
    if (pid_ != 0) return;
    const int out = open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    const int err = open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (out < 0 || err < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0) _exit(99);
    if (chdir(directory.c_str()) != 0) _exit(99);
    execv(CAIRN_BINARY, arguments.data());
    _exit(99);
  }
  CairnProcess(const CairnProcess&) = delete;
  CairnProcess& operator=(const CairnProcess&) = delete;
  ~CairnProcess() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  void Signal(int signal) const { kill(pid_, signal); }
  bool Runs() {
    if (pid_ <= 0) return false;
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  }

  // The system counts the resident size from the fork on, so it is never less than that of the test itself.
  ProcessResult Wait() {
    ProcessResult result;
    int status = 0;
    rusage usage{};
    while (wait4(pid_, &status, 0, &usage) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    if (WIFEXITED(status)) result.code = WEXITSTATUS(status);
    result.peak_resident = static_cast<size_t>(usage.ru_maxrss) * 1024;
    result.out = ReadTextFile(out_);
    result.err = ReadTextFile(err_);
    return result;
  }

 private:
  std::filesystem::path out_, err_;
  pid_t pid_ = -1;
};

inline ProcessResult RunCairn(const std::filesystem::path& directory, const std::vector<std::string>& words,
                              const std::string& tag = "") {
  return CairnProcess(directory, words, tag).Wait();
}

// `cairn LINE` as a shell understands it, in a directory, after settings of the environment ("CAIRN_SHARED=/none").
inline ProcessResult RunCairnLine(const std::filesystem::path& directory, const std::string& line,
                                  const std::string& environment = "") {
  const std::string command =
      "cd '" + directory.string() + "' && " + environment + " '" + CAIRN_BINARY + "' " + line + " > out.txt 2> err.txt";
  const int status = std::system(command.c_str());
  ProcessResult result;
  if (WIFEXITED(status)) result.code = WEXITSTATUS(status);
  result.out = ReadTextFile(directory / "out.txt");
  result.err = ReadTextFile(directory / "err.txt");
  return result;
}

}  // namespace cairn
