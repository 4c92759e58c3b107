/* http_hosts.c - compares the Host header of a request with the names of this server. The page of another site, whose
 * name an attacker lets resolve to an address of this server (DNS rebinding), reads nothing: its requests have the name
 * of that site. An address as Host is accepted, because a site with a name cannot send it. */
#include <arpa/inet.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/err.h"
#include "metrics/http_priv.h"

struct http_hosts {
    char **names; /* [n] owned */
    size_t n;
};

static bool is_name(const char *s)
{
    if (strncmp(s, "*.", 2) == 0)
        s += 2;
    else if (strcmp(s, "*") == 0)
        return true;
    if (*s == '\0' || strlen(s) > HTTP_HOST_MAX)
        return false;
    for (; *s != '\0'; s++)
        if (!isalnum((unsigned char)*s) && strchr("-._", *s) == NULL)
            return false;
    return true;
}

static int add(struct http_hosts *h, const char *name, struct err *err)
{
    size_t n;

    h->names[h->n] = strdup(name);
    if (h->names[h->n] == NULL)
        return err_set(err, ERR_NOMEM, "host names: out of memory");
    n = strlen(name);
    if (n > 1 && name[n - 1] == '.')
        h->names[h->n][n - 1] = '\0'; /* copy_host() removes it too */
    h->n++;
    return 0;
}

int http_hosts_new(const char *listen, const char *const *names, size_t n, struct http_hosts **out,
                   struct err *err)
{
    struct http_hosts *h = calloc(1, sizeof(*h));
    char own[HTTP_HOST_MAX + 1] = "";
    int rc = 0;

    if (h != NULL)
        h->names = calloc(n + 4, sizeof(*h->names));
    if (h == NULL || h->names == NULL) {
        http_hosts_free(h);
        return err_set(err, ERR_NOMEM, "host names: out of memory");
    }
    if (gethostname(own, sizeof(own) - 1) < 0)
        own[0] = '\0'; /* then it has no name that a request could use */
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = is_name(names[i]) ? add(h, names[i], err)
                               : err_set(err, ERR_INPUT, "'%.80s' is not a host name; expected a name without a port, such as "
                                                         "node1.example.com, or *.example.com", names[i]);
    if (rc == 0)
        rc = add(h, "localhost", err);
    if (rc == 0)
        rc = add(h, "*.localhost", err);
    if (rc == 0)
        rc = add(h, listen, err);
    if (rc == 0)
        rc = add(h, own, err);
    if (rc < 0) {
        http_hosts_free(h);
        return rc;
    }
    *out = h;
    return 0;
}

/* Copies the host of "host", "host:port" or "[v6]:port", without a trailing dot. Returns false if it is too long. */
static bool copy_host(const char *header, char out[HTTP_HOST_MAX + 1])
{
    const char *end = header + strlen(header), *colon = strrchr(header, ':');
    size_t n;

    if (header[0] == '[') {
        header++;
        end = strchr(header, ']');
        if (end == NULL)
            return false;
    } else if (colon != NULL) {
        end = colon;
    }
    n = (size_t)(end - header);
    if (n > 0 && header[n - 1] == '.')
        n--;
    if (n == 0 || n > HTTP_HOST_MAX)
        return false;
    memcpy(out, header, n);
    out[n] = '\0';
    return true;
}

static bool matches(const char *name, const char *host)
{
    size_t n_name = strlen(name), n_host = strlen(host);

    if (strcmp(name, "*") == 0)
        return true;
    if (strncmp(name, "*.", 2) != 0)
        return strcasecmp(name, host) == 0;
    return n_host > n_name - 1 && strcasecmp(host + n_host - (n_name - 1), name + 1) == 0;
}

bool http_hosts_have(const struct http_hosts *h, const char *header)
{
    char host[HTTP_HOST_MAX + 1];
    struct in6_addr a;

    if (header == NULL)
        return true;
    if (!copy_host(header, host))
        return false;
    if (inet_pton(AF_INET, host, &a) == 1 || inet_pton(AF_INET6, host, &a) == 1)
        return true;
    for (size_t i = 0; i < h->n; i++)
        if (matches(h->names[i], host))
            return true;
    return false;
}

void http_hosts_free(struct http_hosts *h)
{
    if (h == NULL)
        return;
    for (size_t i = 0; h->names != NULL && i < h->n; i++)
        free(h->names[i]);
    free(h->names);
    free(h);
}
