/* security.c - see security.h. */
#include "daemon/security.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "daemon/local_token.h"
#include "tls/tls.h"

/* ---- the token ---- */

static int check_token(const char *token, struct err *err)
{
    size_t n = strlen(token);

    for (size_t i = 0; i < n; i++)
        if (token[i] < ' ' || token[i] > '~')
            return err_set(
                err, ERR_INPUT,
                "the token: expected printable ASCII characters, found byte %u at position %zu",
                (unsigned char)token[i], i + 1);
    if (n < SECURITY_TOKEN_MIN)
        return err_set(err, ERR_INPUT, "the token: expected at least %d characters, found %zu; `openssl rand -hex 32` "
                                       "prints a good one",
                       SECURITY_TOKEN_MIN, n);
    return 0;
}

static int store_token(const char *text, char out[SECURITY_TOKEN_BYTES], struct err *err)
{
    if (strlen(text) >= SECURITY_TOKEN_BYTES)
        return err_set(err, ERR_INPUT, "the token: expected at most %d characters, found %zu",
                       SECURITY_TOKEN_BYTES - 1, strlen(text));
    snprintf(out, SECURITY_TOKEN_BYTES, "%s", text);
    return check_token(out, err);
}

static int read_token(const char *file, char out[SECURITY_TOKEN_BYTES], struct err *err)
{
    struct buf text = { 0 };
    int rc = fs_read(file, SECURITY_TOKEN_BYTES + 1, &text, err);

    if (rc == 0 && text.data != NULL)
        text.data[strcspn(text.data, "\r\n")] = '\0';
    if (rc == 0 && (text.data == NULL || text.data[0] == '\0'))
        rc = err_set(err, ERR_INPUT,
                     "'%s' is empty: write a secret of at least %d characters into it", file,
                     SECURITY_TOKEN_MIN);
    if (rc == 0)
        rc = store_token(text.data, out, err);
    buf_fini(&text);
    return rc < 0 ? err_wrap(err, rc, "/communication/token_file") : 0;
}

int security_read_token(const char *token_file, char out[SECURITY_TOKEN_BYTES], struct err *err)
{
    const char *env = getenv("TRAINERD_TOKEN");
    int rc;

    out[0] = '\0';
    if (token_file != NULL)
        return read_token(token_file, out, err);
    if (env == NULL || env[0] == '\0')
        return 0;
    rc = store_token(env, out, err);
    return rc < 0 ? err_wrap(err, rc, "TRAINERD_TOKEN") : 0;
}

/* ---- certificates ---- */

static int open_folder(const char *folder, const char *from, struct tls **out, struct err *err)
{
    char *certificate = fs_join(folder, "tls.crt"), *key = fs_join(folder, "tls.key");
    char *authority = fs_join(folder, "ca.crt");
    struct tls_files files = { .certificate = certificate, .key = key, .authority = authority };
    int rc = certificate != NULL && key != NULL && authority != NULL
                 ? tls_open(&files, out, err)
                 : err_set(err, ERR_NOMEM, "out of memory");

    free(certificate);
    free(key);
    free(authority);
    return rc < 0 ? err_wrap(err, rc, "%s", from) : 0;
}

int security_open(const struct security_opts *opts, struct security *out, struct err *err)
{
    const char *env = getenv("TRAINERD_TLS");
    struct security s = { .tls = NULL };
    int rc = security_read_token(opts->token_file, s.token, err);

    if (rc < 0)
        return rc;
    if (s.token[0] == '\0' && opts->address != NULL)
        (void)local_token_find(opts->address, s.token); /* another cluster: no token */
    if (opts->folder != NULL)
        rc = open_folder(opts->folder, "/communication/tls", &s.tls, err);
    else if (env != NULL && env[0] != '\0')
        rc = fs_check_path(env, err) < 0 ? err_wrap(err, ERR_INPUT, "TRAINERD_TLS")
                                         : open_folder(env, "TRAINERD_TLS", &s.tls, err);
    else if (s.token[0] != '\0')
        rc = tls_open_token(s.token, &opts->host, opts->host != NULL ? 1 : 0, &s.tls, err);
    if (rc == 0)
        *out = s;
    return rc;
}

void security_close(struct security *s)
{
    tls_close(s->tls);
    s->tls = NULL;
}
