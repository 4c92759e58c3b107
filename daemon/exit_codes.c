#include "daemon/exit_codes.h"

#include "base/check.h"

static const char RESTARTS[] = "restarts it; the task joins the group again";

const struct exit_code exit_codes[] = {
    { 0, "the job is complete", "nothing. A complete job that is started again exits with 0 at once", "does not restart", false },
    { 2, "configuration or input is invalid; a retry would fail in the same way",
      "read the last line: it names the file, the place and the remedy",
      "must not restart (`RestartPreventExitStatus=2`, `FailJob`)", false },
    { 132, "SIGILL: the processor does not have an instruction of the program",
      "build trainerd, or the library that the core dump names, for this processor", RESTARTS, true },
    { 134, "SIGABRT: trainerd or gRPC found an error in itself, or the unit's `WatchdogSec` expired because the event loop did not run",
      "read the last line: if it names a source file and line, report it; if it is absent, look for `watchdog timeout` in `journalctl -u` of the unit, and at the load of the host", RESTARTS, true },
    { 135, "SIGBUS: a file was truncated while it was in use, or memory is defective",
      "do not change data and model files of a running job; look at `dmesg -T`", RESTARTS, true },
    { 136, "SIGFPE: an invalid operation on integers, which is an error in trainerd or a library",
      "report the core dump (`coredumpctl info trainerd`; the unit writes none before `LimitCORE=infinity`)", RESTARTS, true },
    { 137, "SIGKILL: killed, by the kernel because memory was exhausted, by a supervisor whose time limit expired, or by hand",
      "look for `oom-kill` in `dmesg -T`, and at the limits of memory and of stop time of the unit or pod", RESTARTS, true },
    { 138, "temporary failure",
      "nothing: a restarted task joins the group and receives the state. If the same reason repeats, look it up among the symptoms in systemd/README.md",
      "must restart", false },
    { 139, "SIGSEGV: an invalid memory access, which is an error in trainerd or a library, or defective memory",
      "report the core dump (`coredumpctl info trainerd`; the unit writes none before `LimitCORE=infinity`); test the memory of the host if it repeats there", RESTARTS, true },
    { 143, "stopped by SIGTERM, SIGINT, SIGXCPU, SIGUSR1 or SIGUSR2, `trainerctl drain` or `trainerctl stop`; the state is saved", "start it again to continue",
      "does not restart (`SuccessExitStatus=143`)", false },
    { 159, "SIGSYS: a system-call filter refused a system call",
      "compare the filter (`SystemCallFilter` of the unit) with the system call in `journalctl -k -g seccomp`", RESTARTS, true },
};
const size_t n_exit_codes = COUNT_OF(exit_codes);

void exit_codes_help(FILE *out)
{
    for (size_t i = 0; i < n_exit_codes; i++)
        if (!exit_codes[i].is_signal)
            fprintf(out, "%s%-3d  %s\n", i == 0 ? "exit codes:  " : "             ",
                    exit_codes[i].code, exit_codes[i].meaning);
    fprintf(out, "             `trainerctl explain CODE` shows more\n");
}
