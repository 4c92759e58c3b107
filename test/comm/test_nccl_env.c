/* The environment of NCCL, and the queries of its RAS. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/nccl_env.h"
#include "comm/ras.h"

static const char *const names[] = { "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_RETRY_CNT",
                                     "NCCL_RAS_ADDR", "NCCL_COMM_ID", "NCCL_COMM_BLOCKING", "NCCL_DEBUG" };

static int clear(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(names); i++)
        unsetenv(names[i]);
    return 0;
}

static void address_of_this_host_selects_its_interface(void **state)
{
    static const struct {
        const char *address, *name;
        bool is_v6;
    } rows[] = {
        { "127.0.0.1:1234", "lo", false },  { "127.3.2.1:0", "lo", false }, { "localhost:5", "lo", false },
        { "192.0.2.1:1234", "", false },    { "0.0.0.0:1", "", false },     { "nobody.invalid:1", "", false },
        { "no port", "", false },           { ":1", "", false },            { "", "", false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char name[32] = "?";
        bool is_v6 = true;

        comm_interface(rows[i].address, name, sizeof(name), &is_v6);
        assert_string_equal(name, rows[i].name);
        if (strcmp(rows[i].address, "localhost:5") != 0) /* hosts differ in this */
            assert_int_equal(is_v6, rows[i].is_v6);
    }
}

static void unset_variables_are_set_and_listed(void **state)
{
    char text[1024], want[64];

    (void)state;
    comm_nccl_environment("127.0.0.1:7000", text, sizeof(text));
    assert_string_equal(getenv("NCCL_SOCKET_IFNAME"), "=lo");
    assert_string_equal(getenv("NCCL_SOCKET_FAMILY"), "AF_INET");
    assert_string_equal(getenv("NCCL_SOCKET_RETRY_CNT"), "10");
    assert_memory_equal(getenv("NCCL_RAS_ADDR"), "127.0.0.1:", 10);
    snprintf(want, sizeof(want), "NCCL_RAS_ADDR=%s", getenv("NCCL_RAS_ADDR"));
    assert_non_null(strstr(text, "trainerd sets NCCL_SOCKET_IFNAME==lo, "));
    assert_non_null(strstr(text, want));
    assert_null(strstr(text, "environment"));
}

static void user_variables_are_kept_and_harmful_ones_removed(void **state)
{
    char text[1024];

    (void)state;
    setenv("NCCL_SOCKET_IFNAME", "eth7", 1);
    setenv("NCCL_DEBUG", "WARN", 1);
    setenv("NCCL_RAS_ADDR", "127.0.0.1:4", 1);
    setenv("NCCL_COMM_ID", "10.0.0.1:5", 1);
    setenv("NCCL_COMM_BLOCKING", "1", 1);
    comm_nccl_environment("127.0.0.1:7000", text, sizeof(text));
    assert_string_equal(getenv("NCCL_SOCKET_IFNAME"), "eth7");
    assert_null(getenv("NCCL_SOCKET_FAMILY")); /* the interface differs between hosts */
    assert_string_equal(getenv("NCCL_RAS_ADDR"), "127.0.0.1:4");
    assert_null(getenv("NCCL_COMM_ID"));
    assert_null(getenv("NCCL_COMM_BLOCKING"));
    assert_non_null(
        strstr(text, "NCCL_COMM_ID of the environment is not used; NCCL_COMM_BLOCKING of"));
    assert_non_null(strstr(text, "trainerd sets NCCL_SOCKET_RETRY_CNT=10; from the environment "));
    assert_non_null(strstr(text, "NCCL_SOCKET_IFNAME=eth7"));
    assert_non_null(strstr(text, "NCCL_DEBUG=WARN"));
}

static void unknown_address_leaves_the_interface_to_nccl(void **state)
{
    char text[1024];

    (void)state;
    comm_nccl_environment("192.0.2.1:7000", text, sizeof(text));
    assert_null(getenv("NCCL_SOCKET_IFNAME"));
    assert_non_null(strstr(text, "no interface has the address 192.0.2.1:7000: NCCL chooses one"));
}

static void two_processes_get_ports_of_their_own(void **state)
{
    char text[1024], first[64];

    (void)state;
    comm_nccl_environment(NULL, text, sizeof(text));
    snprintf(first, sizeof(first), "%s", getenv("NCCL_RAS_ADDR"));
    unsetenv("NCCL_RAS_ADDR");
    comm_nccl_environment(NULL, text, sizeof(text));
    assert_string_not_equal(first, getenv("NCCL_RAS_ADDR"));
    assert_string_equal(getenv("NCCL_SOCKET_IFNAME"), "=lo"); /* there is no other task */
}

/* ---- RAS ---- */

/* An answer in the format of the user guide. */
static const char ANSWER[] = "OK\n"
                             "NCCL version 2.28.9 compiled with CUDA 13.0\n"
                             "CUDA runtime version 13000, driver version 13000\n\n"
                             "Job summary\n===========\n\n"
                             "  Nodes  Processes         GPUs  Processes     GPUs\n"
                             "(total)   per node  per process    (total)  (total)\n"
                             "      2          1            1          2        2\n\n"
                             "Communicators... (0.00s)\n=============\n\n"
                             "    0         1         2         1         1         2   RUNNING  MISMATCH\n\n"
                             "Errors\n======\n\n"
                             "#0-0 (27a079b828ff1a75) MISMATCH\n"
                             "  Communicator ranks have different collective operation counts\n"
                             "  1 ranks have launched up to operation 7\n"
                             "  1 ranks have launched up to operation 6\n"
                             "  Rank 1 -- GPU 0 managed by process 77 on node 10.0.0.2\n\n"
                             "Warnings\n========\n\n"
                             "#0-0 (27a079b828ff1a75) TIMEOUT\n  \t Encountered errors\n";

static void errors_and_warnings_form_one_sentence(void **state)
{
    char out[COMM_RAS_BYTES], small[23];

    (void)state;
    comm_ras_extract(ANSWER, out, sizeof(out));
    assert_string_equal(out, "NCCL reports: #0-0 (27a079b828ff1a75) MISMATCH Communicator ranks have different "
                             "collective operation counts 1 ranks have launched up to operation 7 1 ranks have "
                             "launched up to operation 6 Rank 1 -- GPU 0 managed by process 77 on node 10.0.0.2 "
                             "#0-0 (27a079b828ff1a75) TIMEOUT Encountered errors");
    comm_ras_extract(ANSWER, small, sizeof(small));
    assert_string_equal(small, "NCCL reports: #0-0 (27");
    comm_ras_extract("Job summary\n===========\n\nfine\n", out, sizeof(out));
    assert_string_equal(out, "NCCL reports no error");
    comm_ras_extract("", out, sizeof(out));
    assert_string_equal(out, "NCCL reports no error");
    comm_ras_extract("Errors\n======", out, sizeof(out));
    assert_string_equal(out, "NCCL reports no error");
}

static void long_answer_is_truncated(void **state)
{
    char *answer = malloc(100000), out[COMM_RAS_BYTES];

    (void)state;
    assert_non_null(answer);
    memset(answer, 'x', 100000);
    memcpy(answer, "Errors\n======\n", 14);
    answer[99999] = '\0';
    comm_ras_extract(answer, out, sizeof(out));
    assert_int_equal(strlen(out), COMM_RAS_BYTES - 1);
    free(answer);
}

struct server {
    int listener;
    const char *answer; /* NULL: accepts the connection and sends nothing */
    char asked[128];
};

static void *serve(void *arg)
{
    struct server *s = arg;
    int fd = accept(s->listener, NULL, NULL);
    size_t got = 0;

    if (s->answer == NULL) {
        char c;

        while (read(fd, &c, 1) > 0)
            ;
    } else {
        while (memchr(s->asked, 'V', got) == NULL || s->asked[got - 1] != '\n')
            got += (size_t)read(fd, s->asked + got, sizeof(s->asked) - 1 - got);
        CHECK(write(fd, s->answer, strlen(s->answer)) > 0);
    }
    close(fd);
    return NULL;
}

static pthread_t start_server(struct server *s)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t len = sizeof(at);
    char address[64];
    pthread_t t;

    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s->listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(s->listener, 1), 0);
    assert_int_equal(getsockname(s->listener, (struct sockaddr *)&at, &len), 0);
    snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(at.sin_port));
    setenv("NCCL_RAS_ADDR", address, 1);
    assert_int_equal(pthread_create(&t, NULL, serve, s), 0);
    return t;
}

static void ras_is_queried_at_its_port(void **state)
{
    struct server s = { .answer = ANSWER };
    pthread_t t = start_server(&s);
    char out[COMM_RAS_BYTES];

    (void)state;
    comm_ras_query(out, sizeof(out));
    pthread_join(t, NULL);
    close(s.listener);
    assert_string_equal(s.asked, "TIMEOUT 1\nVERBOSE STATUS\n");
    assert_memory_equal(out, "NCCL reports: #0-0", 18);
}

static void silent_ras_is_abandoned_after_a_second(void **state)
{
    struct server s = { 0 };
    pthread_t t = start_server(&s);
    char out[COMM_RAS_BYTES];
    uint64_t begin = clock_ms();

    (void)state;
    comm_ras_query(out, sizeof(out));
    assert_true(clock_ms() - begin >= 900);
    pthread_join(t, NULL);
    close(s.listener);
    assert_non_null(strstr(out, "NCCL reports no reason (RAS at 127.0.0.1:"));
}

static void absent_ras_is_reported(void **state)
{
    static const char *const rows[] = { "127.0.0.1:1", "nonsense", "", "[::1]:1", "999.0.0.1:1" };
    char out[COMM_RAS_BYTES];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        setenv("NCCL_RAS_ADDR", rows[i], 1);
        comm_ras_query(out, sizeof(out));
        assert_memory_equal(out, "NCCL cannot be queried (RAS at ", 31);
        assert_null(strstr(out, "Success"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(address_of_this_host_selects_its_interface, clear),
        cmocka_unit_test_setup(unset_variables_are_set_and_listed, clear),
        cmocka_unit_test_setup(user_variables_are_kept_and_harmful_ones_removed, clear),
        cmocka_unit_test_setup(unknown_address_leaves_the_interface_to_nccl, clear),
        cmocka_unit_test_setup(two_processes_get_ports_of_their_own, clear),
        cmocka_unit_test(errors_and_warnings_form_one_sentence),
        cmocka_unit_test(long_answer_is_truncated),
        cmocka_unit_test_setup(ras_is_queried_at_its_port, clear),
        cmocka_unit_test_setup(silent_ras_is_abandoned_after_a_second, clear),
        cmocka_unit_test_setup(absent_ras_is_reported, clear),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
