/* test_relay.c - what connections cost, at a time that does not pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "rdzv/relay.h"
#include "tls/tls.h"

enum { NOW_MS = 1000, CLIENTS = 300 };

static struct source *new_source(struct sources *s)
{
    struct sockaddr_storage from = { 0 };
    struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };

    memcpy(&from, &v4, sizeof(v4));
    return source_find(s, &from, NOW_MS);
}

/* Returns the result of the read after which the relay has the preface, or has ended. `own`: of the client;
 * NULL: in clear text. */
static enum relay_result connect_once(struct source *source, struct tls *tls, struct tls *own)
{
    enum relay_result result = RELAY_CONTINUES;
    struct tls_stream *client = NULL;
    bool has_sent = false;
    struct relay r;
    struct err err;
    int fd[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd), 0);
    relay_init(&r, source, tls, fd[1], NOW_MS);
    if (own != NULL)
        assert_int_equal(tls_stream_new(own, TLS_CLIENT, fd[0], "a", &client, NULL), 0);
    for (int round = 0; round < 20 && result == RELAY_CONTINUES; round++) {
        int rc = client == NULL ? 1 : tls_stream_handshake(client, NULL);

        if (rc == 1 && !has_sent)
            assert_int_equal(client == NULL
                                 ? send(fd[0], frames_preface, FRAMES_PREFACE_BYTES, 0)
                                 : tls_stream_send(client, frames_preface, FRAMES_PREFACE_BYTES),
                             FRAMES_PREFACE_BYTES);
        has_sent |= rc == 1;
        result = relay_read_client(&r, NOW_MS, true, &err);
    }
    if (result == RELAY_BEGINS) {
        relay_begin(&r, -1);
        if (!relay_has_allowance(&r, NOW_MS))
            result = RELAY_NO_ALLOWANCE;
    }
    tls_stream_free(client);
    relay_fini(&r);
    close(fd[0]);
    close(fd[1]);
    return result;
}

static struct tls *of_token(const char *token)
{
    static const char *const hosts[] = { "127.0.0.1" };
    struct tls *t;

    assert_int_equal(tls_open_token(token, hosts, 1, &t, NULL), 0);
    return t;
}

/* All tasks of a host may connect at once. */
static void connections_with_the_token_cost_their_source_nothing(void **state)
{
    static struct sources sources;
    struct tls *tls = of_token("0123456789abcdef");
    struct source *source = new_source(&sources);

    (void)state;
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(connect_once(source, tls, tls), RELAY_BEGINS);
    tls_close(tls);
}

static void strangers_spend_the_allowance_of_their_source(void **state)
{
    struct tls *tls = of_token("0123456789abcdef"), *other = of_token("fedcba9876543210");

    (void)state;
    for (int in_clear_text = 0; in_clear_text < 2; in_clear_text++) {
        static struct sources sources;
        struct source *source;
        int n = 0;

        memset(&sources, 0, sizeof(sources));
        source = new_source(&sources);
        while (n < CLIENTS &&
               connect_once(source, tls, in_clear_text ? NULL : other) != RELAY_NO_ALLOWANCE)
            n++;
        assert_true(n > 10 && n < CLIENTS);
    }
    tls_close(tls);
    tls_close(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_with_the_token_cost_their_source_nothing),
        cmocka_unit_test(strangers_spend_the_allowance_of_their_source),
    };

    (void)signal(SIGPIPE, SIG_IGN); /* as tls.h demands */
    return cmocka_run_group_tests_name("rdzv/relay", tests, NULL, NULL);
}
