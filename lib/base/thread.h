/* thread.h - starts a thread of the program.
 *
 * In the new thread all signals are blocked except those that its own instructions raise (SIGBUS,
 * SIGFPE, SIGILL, SIGSEGV, SIGTRAP); the event loop handles the others. Threads: any. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

struct err;

/* Starts a thread that runs run(arg). `what` completes the error text "start the thread that
 * <what>". Fault point: thread.start (pthread_create() fails). On failure *out is unspecified.
 * Errors: ERR_IO, ERR_NOMEM (the limit of processes or of memory is reached). */
int thread_start(pthread_t *out, const char *what, void *(*run)(void *arg), void *arg,
                 struct err *err);

/* Checks that n <= THREAD_ROOM_MAX threads can be started, by starting them all; they have ended when the
 * function returns. Called before a library that does not report such a failure starts its threads.
 * `what` completes the error text "start the threads of <what>". Fault point: thread.room. Errors: as
 * above. */
enum { THREAD_ROOM_MAX = 16 };
int thread_check_room(uint32_t n, const char *what, struct err *err);

#endif
