/* mapping.c - copies out of mapped files. Where a mapped file has no bytes any more, the kernel sends
 * SIGBUS to the thread that reads there; the handler leaves the copy, and the thread goes on behind it.
 * A SIGBUS from anywhere else is for whoever had the signal before. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "data/data_priv.h"

static _Thread_local sigjmp_buf way_out;
static _Thread_local volatile sig_atomic_t is_copying;
static struct sigaction before;

static void on_bus_error(int signal)
{
    if (is_copying) {
        is_copying = 0;
        siglongjmp(way_out, 1);
    }
    sigaction(signal, &before, NULL); /* the same read again, without us */
}

/* The handler may be left with siglongjmp: nothing is blocked in it (SA_NODEFER). */
static void install(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct sigaction now, action = { .sa_handler = on_bus_error, .sa_flags = SA_NODEFER };

    sigemptyset(&action.sa_mask);
    pthread_mutex_lock(&lock);
    if (sigaction(SIGBUS, NULL, &now) == 0 && now.sa_handler != on_bus_error) {
        before = now;
        sigaction(SIGBUS, &action, NULL);
    }
    pthread_mutex_unlock(&lock);
}

const uint8_t *data_mapping_new(int fd, uint64_t bytes)
{
    void *at = bytes > 0 ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;

    if (at == MAP_FAILED)
        return NULL;
    install();
    return at;
}

bool data_mapping_copy(void *to, const uint8_t *from, size_t n)
{
    static _Thread_local bool hears;
    sigset_t bus;

    if (!hears) { /* a blocked SIGBUS would end the process */
        sigemptyset(&bus);
        sigaddset(&bus, SIGBUS);
        pthread_sigmask(SIG_UNBLOCK, &bus, NULL);
        hears = true;
    }
    if (sigsetjmp(way_out, 0) != 0)
        return false;
    is_copying = 1;
    atomic_signal_fence(memory_order_seq_cst); /* the copy stays between the two */
    memcpy(to, from, n);
    atomic_signal_fence(memory_order_seq_cst);
    is_copying = 0;
    return true;
}

void data_mapping_free(const uint8_t *mapping, uint64_t bytes)
{
    if (mapping != NULL)
        munmap((void *)(uintptr_t)mapping, bytes);
}
