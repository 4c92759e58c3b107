#include "base/thread.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/memory_room.h"

enum { STACK_BYTES = 8 << 20 }; /* the usual size, where the system does not tell it */

static size_t stack_bytes(void)
{
    size_t bytes = STACK_BYTES;
    pthread_attr_t attr;

    if (pthread_getattr_default_np(&attr) != 0)
        return bytes;
    if (pthread_attr_getstacksize(&attr, &bytes) != 0)
        bytes = STACK_BYTES;
    pthread_attr_destroy(&attr);
    return bytes;
}

/* Blocks all signals except those that the own instructions of a thread raise. */
static void block_signals(sigset_t *before)
{
    static const int raised[] = { SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP };
    sigset_t blocked;

    sigfillset(&blocked);
    for (size_t i = 0; i < COUNT_OF(raised); i++)
        sigdelset(&blocked, raised[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, before);
}

/* Reports that threads did not start: pthread_create() has one error number for the limits of threads and of memory. */
static int failed(int errnum, const char *start, const char *what, struct err *err)
{
    char text[100];

    snprintf(text, sizeof(text), "%s%s", start, what);
    if (errnum == EAGAIN && memory_room_check(stack_bytes(), "a stack", err) < 0)
        return err_wrap(err, ERR_NOMEM, "%s", text);
    return err_sys(err, errnum, "%s", text);
}

int thread_start(pthread_t *out, const char *what, void *(*run)(void *arg), void *arg,
                 struct err *err)
{
    sigset_t before;
    int errnum;

    block_signals(&before);
    errnum = fault_hit("thread.start") ? EAGAIN : pthread_create(out, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return errnum == 0 ? 0 : failed(errnum, "start the thread that ", what, err);
}

/* Waits until all threads have been started, so that they exist at the same time. */
static void *wait_for_all(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

int thread_check_room(uint32_t n, const char *what, struct err *err)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t threads[THREAD_ROOM_MAX];
    sigset_t before;
    uint32_t started = 0;
    int rc, errnum = fault_hit("thread.room") ? EAGAIN : 0;

    CHECK(n <= THREAD_ROOM_MAX);
    block_signals(&before);
    pthread_mutex_lock(&gate);
    while (started < n && errnum == 0) {
        errnum = pthread_create(&threads[started], NULL, wait_for_all, &gate);
        started += errnum == 0;
    }
    /* while the threads that started have their stacks */
    rc = errnum == 0 ? 0 : failed(errnum, "start the threads of ", what, err);
    pthread_mutex_unlock(&gate);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}
