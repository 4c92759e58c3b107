#include "base/thread.h"

#include <errno.h>
#include <signal.h>

#include "base/err.h"
#include "base/fault.h"

int thread_start(pthread_t *out, const char *what, void *(*run)(void *arg), void *arg,
                 struct err *err)
{
    static const int raised[] = { SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP };
    sigset_t blocked, before;
    int errnum;

    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof(raised) / sizeof(raised[0]); i++)
        sigdelset(&blocked, raised[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    errnum = fault_hit("thread.start") ? EAGAIN : pthread_create(out, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return errnum == 0 ? 0 : err_sys(err, errnum, "start the thread that %s", what);
}
