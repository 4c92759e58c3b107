#include "base/memory_room.h"

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/log_sink.h"
#include "base/text.h"

enum {
    CRASH_BYTES = 16 << 20, /* a process that crashes with more room has another reason */
    STACK_BYTES = 2 << 20,
    STACK_BYTES_MIN = 256 << 10, /* of the main thread; a task overflows 64 KiB before it trains */
    SIGNAL_STACK_BYTES = 64 << 10,
};

static const int crashes[] = { SIGSEGV, SIGABRT };
static struct sigaction earlier[COUNT_OF(crashes)];
static char limit_text[256], exit_text[32];
static int exit_code;

bool memory_room_has(size_t bytes)
{
    /* Private and writable, which all limits count; no page is touched. */
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return at != MAP_FAILED && munmap(at, bytes) == 0;
}

/* Describes the limit that this process can reach. */
static void describe_limit(char *out, size_t room)
{
    static const struct {
        int resource;
        const char *name, *counts;
    } limits[] = {
        { RLIMIT_AS, "RLIMIT_AS (ulimit -v)", ", because it also counts addresses without memory" },
        { RLIMIT_DATA, "RLIMIT_DATA (ulimit -d)", "" },
    };
    struct rlimit limit;
    char size[32];

    for (size_t i = 0; i < COUNT_OF(limits); i++)
        if (getrlimit(limits[i].resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
            text_bytes(size, sizeof(size), limit.rlim_cur);
            snprintf(out, room, "%s is %s: raise it, or limit the memory with a control group%s",
                     limits[i].name, size, limits[i].counts);
            return;
        }
    snprintf(out, room,
             "the kernel refuses more: look at vm.overcommit_memory and vm.max_map_count");
}

int memory_room_check(size_t bytes, const char *what, struct err *err)
{
    char text[sizeof(limit_text)], size[32];

    if (!fault_hit("memory.room") && memory_room_has(bytes))
        return 0;
    describe_limit(text, sizeof(text));
    text_bytes(size, sizeof(size), bytes);
    return err_set(err, ERR_NOMEM, "no room for %s: %s cannot be mapped; %s", what, size, text);
}

static void on_crash(int signum, siginfo_t *info, void *context)
{
    const char *const parts[] = { log_sink_prefix(LOG_ERROR),
                                  "no memory is left, so a library failed (",
                                  signum == SIGSEGV ? "SIGSEGV" : "SIGABRT", "); ", limit_text,
                                  exit_text };

    (void)context;
    if (memory_room_has(CRASH_BYTES)) {
        for (size_t i = 0; i < COUNT_OF(crashes); i++)
            if (crashes[i] == signum)
                (void)sigaction(signum, &earlier[i], NULL);
        if (info->si_code <= 0) /* sent, and not raised by an instruction, which is repeated */
            raise(signum);
        return;
    }
    log_sink_write_final_parts(parts, COUNT_OF(parts));
    _exit(exit_code);
}

static void set_thread_stacks(void)
{
    pthread_attr_t attr;

    if (pthread_attr_init(&attr) != 0)
        return;
    if (pthread_attr_setstacksize(&attr, STACK_BYTES) == 0)
        (void)pthread_setattr_default_np(&attr); /* a failure leaves the stacks as they are */
    pthread_attr_destroy(&attr);
}

/* Threads reserve a stack each, and the first request for memory in a thread reserves a heap of 64 MiB. */
static void save_addresses(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return;
    (void)mallopt(M_ARENA_MAX, 1); /* a failure leaves more heaps */
    set_thread_stacks();
}

/* The stack of this thread grows up to the limit, which is raised here as far as this process may. The limit is also the size
 * of the stacks of other threads, unless another size is set. */
static int prepare_stacks(struct err *err)
{
    char size[32], least[32];
    struct rlimit limit;

    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= STACK_BYTES)
        return 0; /* RLIM_INFINITY is the largest number */
    set_thread_stacks();
    limit.rlim_cur = limit.rlim_max < STACK_BYTES ? limit.rlim_max : STACK_BYTES;
    if (setrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur >= STACK_BYTES_MIN)
        return 0;
    text_bytes(size, sizeof(size), limit.rlim_cur);
    text_bytes(least, sizeof(least), STACK_BYTES_MIN);
    return err_set(
        err, ERR_INPUT,
        "RLIMIT_STACK (ulimit -s) is %s, expected at least %s for the stack of the program; raise it: ulimit -s 8192",
        size, least);
}

int memory_room_prepare(int code, struct err *err)
{
    static char stack[SIGNAL_STACK_BYTES]; /* of this thread, whose own stack may have no room to grow */
    struct sigaction action = { .sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK };
    stack_t own = { .ss_sp = stack, .ss_size = sizeof(stack) };

    exit_code = code;
    describe_limit(limit_text, sizeof(limit_text));
    snprintf(exit_text, sizeof(exit_text), "; exiting with code %d", code);
    save_addresses();
    (void)sigaltstack(&own, NULL); /* fails only for an invalid stack, as sigaction() for an invalid signal */
    for (size_t i = 0; i < COUNT_OF(crashes); i++)
        (void)sigaction(crashes[i], &action, &earlier[i]);
    return prepare_stacks(err);
}
