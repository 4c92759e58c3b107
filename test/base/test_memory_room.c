/* A process whose memory is limited: the room is tested, and a crash without room is an exit with a message. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/memory_room.h"
#include "base/thread.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { HAS_ADDRESSES = 0 }; /* a sanitizer reserves terabytes */
#else
enum { HAS_ADDRESSES = 1 };
#endif

enum { CODE = 38, LIMIT = 512 << 20, PIECE = 1 << 20 };

static void limit_addresses(void)
{
    struct rlimit limit = { LIMIT, LIMIT };

    if (setrlimit(RLIMIT_AS, &limit) != 0)
        _exit(99);
}

static void use_all(void)
{
    while (mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
           MAP_FAILED)
        continue;
}

/* Runs fn in a child; returns its wait status, and what it wrote to stderr. */
static int run(void (*fn)(void), char *text, size_t room)
{
    int pipes[2], status;
    ssize_t n;
    pid_t pid;

    assert_int_equal(pipe(pipes), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit no_core = { 0, 0 };

        signal(SIGSEGV, SIG_DFL); /* cmocka has handlers */
        setrlimit(RLIMIT_CORE, &no_core);
        dup2(pipes[1], STDERR_FILENO);
        close(pipes[0]);
        fn();
        _exit(0);
    }
    close(pipes[1]);
    n = read(pipes[0], text, room - 1);
    text[n > 0 ? n : 0] = '\0';
    close(pipes[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* Uses `n` bytes of the stack. */
static void *use_stack(void *n)
{
    volatile char *at = __builtin_alloca(*(size_t *)n);

    for (size_t i = 0; i < *(size_t *)n; i += 1024)
        at[i] = 1;
    return NULL;
}

static void stack_that_may_be_raised(void)
{
    struct rlimit limit = { 64 << 10, 4 << 20 };
    size_t n = 1 << 20;
    pthread_t thread;

    if (setrlimit(RLIMIT_STACK, &limit) != 0 || memory_room_prepare(CODE, NULL) != 0 ||
        pthread_create(&thread, NULL, use_stack, &n) != 0 || pthread_join(thread, NULL) != 0)
        _exit(99);
    use_stack(&n);
}

static void stack_that_is_too_small(void)
{
    struct rlimit limit = { 64 << 10, 64 << 10 };
    struct err err;

    if (setrlimit(RLIMIT_STACK, &limit) != 0 || memory_room_prepare(CODE, &err) != ERR_INPUT)
        _exit(99);
    if (write(STDERR_FILENO, err.text, strlen(err.text)) < 0)
        _exit(98);
}

static void small_stack_is_raised_or_refused_with_its_limit(void **state)
{
    char text[1024];

    (void)state;
    assert_int_equal(run(stack_that_may_be_raised, text, sizeof(text)), 0);
    assert_int_equal(run(stack_that_is_too_small, text, sizeof(text)), 0);
    assert_non_null(
        strstr(text, "RLIMIT_STACK (ulimit -s) is 64.0 KiB, expected at least 256.0 KiB"));
}

static void follow_null(void)
{
    volatile int *volatile nothing = NULL;

    *nothing = 1;
}

static void crash_without_room(void)
{
    limit_addresses();
    memory_room_prepare(CODE, NULL);
    use_all();
    follow_null();
}

static void abort_without_room(void)
{
    limit_addresses();
    memory_room_prepare(CODE, NULL);
    use_all();
    abort();
}

static void crash_with_room(void)
{
    memory_room_prepare(CODE, NULL);
    follow_null();
}

static void abort_with_room(void)
{
    memory_room_prepare(CODE, NULL);
    abort();
}

static void crash_without_room_exits_with_the_limit_and_the_code(void **state)
{
    void (*const crashes[])(void) = { crash_without_room, abort_without_room };
    const char *const names[] = { "(SIGSEGV)", "(SIGABRT)" };

    (void)state;
    for (size_t i = 0; HAS_ADDRESSES && i < 2; i++) {
        char text[1024];
        int status = run(crashes[i], text, sizeof(text));

        if (!WIFEXITED(status) || WEXITSTATUS(status) != CODE)
            fail_msg("case %zu: status %#x: %s", i, (unsigned)status, text);
        assert_non_null(strstr(text, names[i]));
        assert_non_null(strstr(text, "RLIMIT_AS (ulimit -v) is 512"));
        assert_non_null(strstr(text, "exiting with code 38\n"));
    }
}

static void crash_with_room_keeps_its_signal(void **state)
{
    char text[1024];
    int status;

    (void)state;
    status = run(abort_with_room, text, sizeof(text));
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_string_equal(text, "");
    status = run(crash_with_room, text, sizeof(text));
    if (HAS_ADDRESSES) { /* a sanitizer reports and exits */
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
        assert_string_equal(text, "");
    }
}

static void *do_nothing(void *arg)
{
    char *memory = malloc(100); /* the first request of a thread may reserve a heap */

    free(memory);
    return arg;
}

static void *wait_for_end(void *arg)
{
    do_nothing(NULL);
    pthread_barrier_wait(arg);
    return NULL;
}

/* 64 threads with the default stacks of 8 MiB and heaps of 64 MiB do not fit in 512 MiB. */
static void start_many_threads(void)
{
    enum { THREADS = 64 };
    pthread_t threads[THREADS];
    pthread_barrier_t end;
    struct err err;

    limit_addresses();
    memory_room_prepare(CODE, NULL);
    if (memory_room_check(100 << 20, "a test", &err) != 0)
        _exit(1);
    pthread_barrier_init(&end, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, wait_for_end, &end) != 0)
            _exit(2);
    pthread_barrier_wait(&end);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    use_all();
    if (memory_room_check(1 << 20, "a test", &err) != ERR_NOMEM)
        _exit(3);
    fprintf(stderr, "%s", err.text);
}

static void limited_process_starts_many_threads_and_names_the_limit(void **state)
{
    char text[1024];
    int status;

    (void)state;
    if (!HAS_ADDRESSES)
        skip();
    status = run(start_many_threads, text, sizeof(text));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_non_null(strstr(text, "no room for a test: 1.0 MiB cannot be mapped; RLIMIT_AS"));
}

/* Stacks have 2 MiB here, so 4 MiB suffice for a thread, and its failure has another reason. */
static void start_no_thread(void)
{
    void *room;
    pthread_t thread;
    struct err err;

    limit_addresses();
    memory_room_prepare(CODE, NULL);
    room = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED || fault_arm("thread.start", NULL) != 0)
        _exit(1);
    use_all();
    munmap(room, 4 << 20);
    if (thread_start(&thread, "waits", do_nothing, NULL, &err) == 0)
        _exit(2);
    fprintf(stderr, "%s", err.text);
}

static void failure_of_a_thread_names_memory_only_if_its_stack_has_no_room(void **state)
{
    char text[1024];
    int status;

    (void)state;
    if (!HAS_ADDRESSES)
        skip();
    status = run(start_no_thread, text, sizeof(text));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_string_equal(text, "start the thread that waits: Resource temporarily unavailable");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_stack_is_raised_or_refused_with_its_limit),
        cmocka_unit_test(crash_without_room_exits_with_the_limit_and_the_code),
        cmocka_unit_test(crash_with_room_keeps_its_signal),
        cmocka_unit_test(limited_process_starts_many_threads_and_names_the_limit),
        cmocka_unit_test(failure_of_a_thread_names_memory_only_if_its_stack_has_no_room),
    };

    return cmocka_run_group_tests_name("base/memory_room", tests, NULL, NULL);
}
