/* test_tls.c - both ends of a connection, in one thread. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include <openssl/bio.h>
#include <openssl/pem.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "tls/keys.h"
#include "tls/tls.h"
#include "tls/tls_priv.h"

static const char token[] = "0123456789abcdef0123456789abcdef";

struct ends { /* [0]: client, [1]: server */
    int fd[2];
    struct tls_stream *s[2];
    int rc[2];
    struct err err[2];
};

static void connect_fds(struct ends *e)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, e->fd), 0);
}

static void close_ends(struct ends *e)
{
    for (int i = 0; i < 2; i++) {
        tls_stream_free(e->s[i]);
        close(e->fd[i]);
    }
}

/* Runs both handshakes until each is complete or has failed. */
static void shake(struct ends *e)
{
    e->rc[0] = e->rc[1] = 0;
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < 2; i++)
            if (e->rc[i] == 0)
                e->rc[i] = tls_stream_handshake(e->s[i], &e->err[i]);
}

static void open_ends(struct ends *e, struct tls *client, struct tls *server, const char *host)
{
    struct err err;

    memset(e, 0, sizeof(*e));
    connect_fds(e);
    assert_int_equal(tls_stream_new(client, TLS_CLIENT, e->fd[0], host, &e->s[0], &err), 0);
    assert_int_equal(tls_stream_new(server, TLS_SERVER, e->fd[1], NULL, &e->s[1], &err), 0);
    shake(e);
}

static void expect_rejected_by_server(struct ends *e)
{
    assert_int_equal(e->rc[1], ERR_AUTH);
    assert_int_equal(e->rc[0], ERR_AUTH);
    assert_non_null(strstr(e->err[0].text, "does not accept this certificate"));
}

static struct tls *of_token(const char *secret)
{
    const char *const hosts[] = { "host-a", "10.0.0.1" };
    struct tls *t = NULL;
    struct err err;

    if (tls_open_token(secret, hosts, 2, &t, &err) < 0)
        fail_msg("%s", err.text);
    return t;
}

static void token_equal_streams_carry_bytes(void **state)
{
    struct tls *a = of_token(token), *b = of_token(token);
    struct ends e;
    struct tls_peer *peer;
    char names[200], got[8] = "";

    (void)state;
    open_ends(&e, a, b, "any.name");
    assert_int_equal(e.rc[0], 1);
    assert_int_equal(e.rc[1], 1);
    assert_int_equal(tls_stream_send(e.s[0], "hello", 5), 5);
    assert_int_equal(tls_stream_recv(e.s[1], got, sizeof(got)), 5);
    assert_memory_equal(got, "hello", 5);
    assert_int_equal(tls_stream_recv(e.s[1], got, sizeof(got)), -1);
    assert_int_equal(errno, EAGAIN);
    peer = tls_stream_peer(e.s[1]);
    close_ends(&e);
    tls_peer_names(peer, names, sizeof(names));
    assert_string_equal(names, "task.trainerd host-a 10.0.0.1");
    assert_true(tls_peer_has(peer, "host-a"));
    assert_true(tls_peer_has(peer, "10.0.0.1"));
    assert_false(tls_peer_has(peer, "host-b"));
    assert_false(tls_peer_has(peer, "10.0.0.2"));
    tls_peer_free(peer);
    tls_close(a);
    tls_close(b);
}

/* The key of the token takes the place of the certificates, unless one of the ends, as another library, has none. */
static void token_equal_handshake_uses_its_key_or_the_certificates(void **state)
{
    struct tls *t = of_token(token);
    struct ends e;

    (void)state;
    for (int without = -1; without < 2; without++) {
        memset(&e, 0, sizeof(e));
        connect_fds(&e);
        assert_int_equal(tls_stream_new(t, TLS_CLIENT, e.fd[0], "any.name", &e.s[0], NULL), 0);
        assert_int_equal(tls_stream_new(t, TLS_SERVER, e.fd[1], NULL, &e.s[1], NULL), 0);
        if (without >= 0)
            e.s[without]->has_token_key = false;
        shake(&e);
        for (int i = 0; i < 2; i++) {
            struct tls_peer *peer = tls_stream_peer(e.s[i]);

            assert_int_equal(e.rc[i], 1);
            assert_int_equal(SSL_session_reused(e.s[i]->ssl), without < 0);
            assert_non_null(peer);
            tls_peer_free(peer);
        }
        close_ends(&e);
    }
    tls_close(t);
}

static void token_different_is_rejected(void **state)
{
    struct tls *a = of_token(token), *b = of_token("another secret of 32 characters!");
    struct ends e;

    (void)state;
    open_ends(&e, a, b, "any.name");
    assert_int_equal(e.rc[0], ERR_AUTH);
    assert_int_not_equal(e.rc[1], 1);
    close_ends(&e);
    tls_close(a);
    tls_close(b);
}

/* ---- files ---- */

struct folder {
    char path[64], certificate[96], key[96], authority[96];
    struct tls_files files;
    struct buf authority_text, authority_key;
};

static void write_text(const char *path, const struct buf *text)
{
    struct err err;

    if (fs_replace(path, text->data, text->len, &err) < 0)
        fail_msg("%s", err.text);
}

static void issue(struct folder *f, const char *host)
{
    const struct tls_subject subject = { .name = "task", .hosts = &host, .n_hosts = 1, .days = 10 };
    struct buf certificate = { 0 }, key = { 0 };
    struct err err;

    if (tls_certificate_new(f->authority_text.data, f->authority_key.data, &subject, &certificate,
                            &key, &err) < 0)
        fail_msg("%s", err.text);
    write_text(f->certificate, &certificate);
    write_text(f->key, &key);
    buf_fini(&certificate);
    buf_fini(&key);
}

static void make_folder(struct folder *f, const char *host)
{
    struct err err;

    memset(f, 0, sizeof(*f));
    snprintf(f->path, sizeof(f->path), "/tmp/trainerd-tls-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    snprintf(f->certificate, sizeof(f->certificate), "%s/task.pem", f->path);
    snprintf(f->key, sizeof(f->key), "%s/task.key", f->path);
    snprintf(f->authority, sizeof(f->authority), "%s/authority.pem", f->path);
    f->files = (struct tls_files){ f->certificate, f->key, f->authority };
    if (tls_authority_new("a cluster", 10, &f->authority_text, &f->authority_key, &err) < 0)
        fail_msg("%s", err.text);
    write_text(f->authority, &f->authority_text);
    issue(f, host);
}

static void remove_folder(struct folder *f)
{
    struct err err;

    assert_int_equal(fs_remove_tree(f->path, &err), 0);
    buf_fini(&f->authority_text);
    buf_fini(&f->authority_key);
}

static struct tls *of_files(const struct folder *f)
{
    struct tls *t = NULL;
    struct err err;

    if (tls_open(&f->files, &t, &err) < 0)
        fail_msg("%s", err.text);
    return t;
}

static void server_name_other_than_expected_is_rejected(void **state)
{
    struct folder f;
    struct tls *t;
    struct ends e;

    (void)state;
    make_folder(&f, "host-a");
    t = of_files(&f);
    open_ends(&e, t, t, "host-a");
    assert_int_equal(e.rc[0], 1);
    assert_int_equal(e.rc[1], 1);
    close_ends(&e);
    open_ends(&e, t, t, "host-b");
    assert_int_equal(e.rc[0], ERR_AUTH);
    assert_non_null(strstr(e.err[0].text, "ostname mismatch"));
    close_ends(&e);
    tls_close(t);
    remove_folder(&f);
}

static void server_address_other_than_expected_is_rejected(void **state)
{
    struct folder f;
    struct tls *t;
    struct ends e;

    (void)state;
    make_folder(&f, "10.1.2.3");
    t = of_files(&f);
    open_ends(&e, t, t, "10.1.2.3");
    assert_int_equal(e.rc[0], 1);
    close_ends(&e);
    open_ends(&e, t, t, "10.1.2.4");
    assert_int_equal(e.rc[0], ERR_AUTH);
    close_ends(&e);
    tls_close(t);
    remove_folder(&f);
}

static void client_of_other_authority_is_rejected(void **state)
{
    struct folder f, other;
    struct tls *server, *client;
    struct ends e;

    (void)state;
    make_folder(&f, "host-a");
    make_folder(&other, "host-a");
    write_text(other.authority, &other.authority_text);
    server = of_files(&f);
    client = of_files(&other);
    tls_close(client);
    /* the client trusts both authorities, the server only its own */
    buf_add(&other.authority_text, f.authority_text.data, f.authority_text.len);
    write_text(other.authority, &other.authority_text);
    client = of_files(&other);
    open_ends(&e, client, server, "host-a");
    expect_rejected_by_server(&e);
    close_ends(&e);
    tls_close(client);
    tls_close(server);
    remove_folder(&f);
    remove_folder(&other);
}

static void expect_open(const struct folder *f, int code, const char *text)
{
    struct tls *t = NULL;
    struct err err = { 0 };

    assert_int_equal(tls_open(&f->files, &t, &err), code);
    if (strstr(err.text, text) == NULL)
        fail_msg("'%s' does not contain '%s'", err.text, text);
    assert_null(t);
}

/* Sets the end of the validity of the certificate to the past. */
static void expire(struct folder *f)
{
    struct buf text = { 0 }, out = { 0 };
    struct err err;
    BIO *from, *to = BIO_new(BIO_s_mem()), *keys = BIO_new_mem_buf(f->authority_key.data, -1);
    EVP_PKEY *key = PEM_read_bio_PrivateKey(keys, NULL, NULL, NULL);
    X509 *x;
    char *bytes;
    long n;

    assert_int_equal(fs_read(f->certificate, 1 << 20, &text, &err), 0);
    from = BIO_new_mem_buf(text.data, -1);
    x = PEM_read_bio_X509(from, NULL, NULL, NULL);
    assert_non_null(X509_gmtime_adj(X509_getm_notAfter(x), -60));
    assert_true(X509_sign(x, key, EVP_sha256()) > 0);
    assert_int_equal(PEM_write_bio_X509(to, x), 1);
    n = BIO_get_mem_data(to, &bytes);
    buf_add(&out, bytes, (size_t)n);
    write_text(f->certificate, &out);
    buf_fini(&text);
    buf_fini(&out);
    X509_free(x);
    EVP_PKEY_free(key);
    BIO_free(from);
    BIO_free(to);
    BIO_free(keys);
}

static void file_invalid_is_refused_with_its_path(void **state)
{
    struct buf junk = { 0 };
    struct folder f, other;

    (void)state;
    make_folder(&f, "host-a");
    make_folder(&other, "host-a");
    buf_str(&junk, "junk");
    write_text(f.key, &junk);
    expect_open(&f, ERR_INPUT, "task.key': expected a private key");
    issue(&f, "host-a");
    write_text(f.certificate, &junk);
    expect_open(&f, ERR_INPUT, "task.pem': expected a certificate");
    issue(&f, "host-a");
    write_text(f.authority, &junk);
    expect_open(&f, ERR_INPUT, "authority.pem': expected certificates");
    write_text(f.authority, &other.authority_text);
    expect_open(&f, ERR_INPUT, "task.pem': not valid under the authority");
    write_text(f.authority, &f.authority_text);
    f.files.key = other.key;
    expect_open(&f, ERR_INPUT, "does not belong to the certificate");
    f.files.key = f.key;
    expire(&f);
    expect_open(&f, ERR_INPUT, "certificate has expired");
    assert_int_equal(unlink(f.certificate), 0);
    expect_open(&f, ERR_NOENT, "task.pem");
    buf_fini(&junk);
    remove_folder(&f);
    remove_folder(&other);
}

static void files_changed_are_used_by_new_connections(void **state)
{
    struct buf junk = { 0 };
    struct folder f;
    struct tls *t;
    struct ends e;
    struct err err;

    (void)state;
    make_folder(&f, "host-a");
    t = of_files(&f);
    assert_int_equal(tls_refresh(t, &err), 0);
    issue(&f, "host-b");
    assert_int_equal(tls_refresh(t, &err), 1);
    assert_int_equal(tls_refresh(t, &err), 0);
    open_ends(&e, t, t, "host-b");
    assert_int_equal(e.rc[0], 1);
    close_ends(&e);
    buf_str(&junk, "junk");
    write_text(f.key, &junk);
    assert_int_equal(tls_refresh(t, &err), ERR_INPUT);
    open_ends(&e, t, t, "host-b");
    assert_int_equal(e.rc[0], 1);
    assert_int_equal(e.rc[1], 1);
    close_ends(&e);
    buf_fini(&junk);
    tls_close(t);
    remove_folder(&f);
}

static void subject_with_invalid_host_is_refused(void **state)
{
    const char *const hosts[] = { "good", "bad,DNS:other" };
    const struct tls_subject subject = { .name = "task", .hosts = hosts, .n_hosts = 2, .days = 1 };
    struct buf authority = { 0 }, authority_key = { 0 }, certificate = { 0 }, key = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(tls_authority_new("a cluster", 1, &authority, &authority_key, &err), 0);
    assert_int_equal(
        tls_certificate_new(authority.data, authority_key.data, &subject, &certificate, &key, &err),
        ERR_INPUT);
    assert_non_null(strstr(err.text, "'bad,DNS:other' is no host name"));
    assert_int_equal(
        tls_certificate_new("junk", authority_key.data, &subject, &certificate, &key, &err),
        ERR_INPUT);
    buf_fini(&authority);
    buf_fini(&authority_key);
    buf_fini(&certificate);
    buf_fini(&key);
}

/* ---- other protocols ---- */

static void client_without_tls_is_rejected(void **state)
{
    struct tls *t = of_token(token);
    struct ends e = { .rc = { 1 } };

    (void)state;
    connect_fds(&e);
    assert_int_equal(tls_stream_new(t, TLS_SERVER, e.fd[1], NULL, &e.s[1], &e.err[1]), 0);
    assert_int_equal(send(e.fd[0], "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24, 0), 24);
    assert_int_equal(tls_stream_handshake(e.s[1], &e.err[1]), ERR_AUTH);
    assert_non_null(strstr(e.err[1].text, "does not use TLS"));
    close_ends(&e);
    tls_close(t);
}

static void connection_closed_in_handshake_is_reported(void **state)
{
    struct tls *t = of_token(token);
    struct ends e = { .rc = { 1 } };

    (void)state;
    connect_fds(&e);
    assert_int_equal(tls_stream_new(t, TLS_SERVER, e.fd[1], NULL, &e.s[1], &e.err[1]), 0);
    assert_int_equal(shutdown(e.fd[0], SHUT_RDWR), 0);
    assert_int_equal(tls_stream_handshake(e.s[1], &e.err[1]), ERR_PEER);
    close_ends(&e);
    tls_close(t);
}

/* ---- data plane ---- */

static void open_psk(struct ends *e, uint8_t first, uint8_t second)
{
    uint8_t a[TLS_KEY_BYTES] = { first }, b[TLS_KEY_BYTES] = { second };

    memset(e, 0, sizeof(*e));
    connect_fds(e);
    assert_int_equal(tls_stream_new_psk(a, TLS_CLIENT, e->fd[0], &e->s[0], &e->err[0]), 0);
    assert_int_equal(tls_stream_new_psk(b, TLS_SERVER, e->fd[1], &e->s[1], &e->err[1]), 0);
    shake(e);
}

static void carry_bytes_in_both_directions(void)
{
    enum { BYTES = 1 << 20 };
    uint8_t *sent = malloc(BYTES), *got = malloc(BYTES);
    size_t n_sent[2] = { 0 }, n_got[2] = { 0 };
    struct ends e;

    for (size_t i = 0; i < BYTES; i++)
        sent[i] = (uint8_t)(i * 31 + i / 255);
    open_psk(&e, 7, 7);
    assert_int_equal(e.rc[0], 1);
    assert_int_equal(e.rc[1], 1);
    while (n_got[0] < BYTES || n_got[1] < BYTES) {
        for (int i = 0; i < 2; i++) {
            ssize_t n = n_sent[i] < BYTES
                            ? tls_stream_send(e.s[i], sent + n_sent[i], BYTES - n_sent[i])
                            : 0;

            assert_true(n >= 0 || errno == EAGAIN);
            n_sent[i] += n > 0 ? (size_t)n : 0;
            n = tls_stream_recv(e.s[!i], got, BYTES);
            assert_true(n > 0 || (n < 0 && errno == EAGAIN));
            if (n > 0) {
                assert_memory_equal(got, sent + n_got[!i], n);
                n_got[!i] += (size_t)n;
            }
        }
    }
    tls_stream_free(e.s[0]);
    e.s[0] = NULL;
    assert_int_equal(tls_stream_recv(e.s[1], got, BYTES), 0);
    close_ends(&e);
    free(sent);
    free(got);
}

static void key_equal_streams_carry_bytes_in_both_directions(void **state)
{
    (void)state;
    carry_bytes_in_both_directions();
}

static void key_of_a_direction_changes_after_many_bytes(void **state)
{
    (void)state;
    tls_key_bytes_max = 100000;
    carry_bytes_in_both_directions();
    tls_key_bytes_max = (uint64_t)1 << 36;
}

static void key_different_is_rejected(void **state)
{
    struct ends e;

    (void)state;
    open_psk(&e, 7, 8);
    assert_true(e.rc[0] < 0);
    assert_int_equal(e.rc[1], ERR_AUTH);
    close_ends(&e);
}

/* A server with any certificate, but without the key. */
static void server_with_certificate_instead_of_key_is_rejected(void **state)
{
    uint8_t key[TLS_KEY_BYTES] = { 7 };
    struct tls *t = of_token(token);
    struct ends e = { .rc = { 0 } };

    (void)state;
    connect_fds(&e);
    assert_int_equal(tls_stream_new_psk(key, TLS_CLIENT, e.fd[0], &e.s[0], &e.err[0]), 0);
    assert_int_equal(tls_stream_new(t, TLS_SERVER, e.fd[1], NULL, &e.s[1], &e.err[1]), 0);
    shake(&e);
    assert_true(e.rc[0] < 0);
    close_ends(&e);
    tls_close(t);
}

static void byte_changed_on_the_way_is_detected(void **state)
{
    uint8_t bytes[256], got[256];
    struct ends e;
    ssize_t n;

    (void)state;
    for (int round = 0; round < 40; round++) {
        open_psk(&e, 7, 7);
        assert_int_equal(tls_stream_send(e.s[0], "some bytes", 10), 10);
        n = recv(e.fd[1], bytes, sizeof(bytes), 0); /* takes the record from the socket ... */
        assert_true(n > 10);
        bytes[5 + round % (n - 5)] ^= (uint8_t)(1 << round % 8);
        assert_int_equal(send(e.fd[0], bytes, (size_t)n, 0), n); /* ... and returns it changed */
        assert_int_equal(tls_stream_recv(e.s[1], got, sizeof(got)), -1);
        assert_int_equal(errno, EPROTO);
        assert_int_equal(tls_stream_recv(e.s[1], got, sizeof(got)), -1);
        close_ends(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_equal_streams_carry_bytes),
        cmocka_unit_test(token_equal_handshake_uses_its_key_or_the_certificates),
        cmocka_unit_test(token_different_is_rejected),
        cmocka_unit_test(server_name_other_than_expected_is_rejected),
        cmocka_unit_test(server_address_other_than_expected_is_rejected),
        cmocka_unit_test(client_of_other_authority_is_rejected),
        cmocka_unit_test(file_invalid_is_refused_with_its_path),
        cmocka_unit_test(files_changed_are_used_by_new_connections),
        cmocka_unit_test(subject_with_invalid_host_is_refused),
        cmocka_unit_test(client_without_tls_is_rejected),
        cmocka_unit_test(connection_closed_in_handshake_is_reported),
        cmocka_unit_test(key_equal_streams_carry_bytes_in_both_directions),
        cmocka_unit_test(key_of_a_direction_changes_after_many_bytes),
        cmocka_unit_test(key_different_is_rejected),
        cmocka_unit_test(server_with_certificate_instead_of_key_is_rejected),
        cmocka_unit_test(byte_changed_on_the_way_is_detected),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
