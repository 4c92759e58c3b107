#include "comm/ras.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/errno_text.h"
#include "base/text.h"

enum { LIMIT_MS = 1000, ANSWER_BYTES = 64 << 10 };

/* RAS waits half as long for its peers, so it can still report which peer does not answer. */
static const char QUESTION[] = "TIMEOUT 1\nVERBOSE STATUS\n";

/* ---- words ---- */

static bool is_rule(const char *line)
{
    size_t n = strspn(line, "=");

    return n >= 3 && (line[n] == '\n' || line[n] == '\r' || line[n] == '\0');
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');

    return end != NULL ? end + 1 : line + strlen(line);
}

static bool is_trouble(const char *heading)
{
    return text_starts(heading, "Errors") || text_starts(heading, "Warnings");
}

/* Copies the words of a line, separated by one blank. */
static size_t add_words(const char *line, const char *end, char *out, size_t n, size_t at)
{
    for (const char *c = line; c < end && at + 2 < n; c++) {
        bool is_blank = (unsigned char)*c <= ' ';

        if (is_blank && (at == 0 || out[at - 1] == ' '))
            continue;
        out[at++] = is_blank ? ' ' : *c;
    }
    if (at > 0 && out[at - 1] != ' ' && at + 1 < n)
        out[at++] = ' ';
    return at;
}

void comm_ras_extract(const char *answer, char *out, size_t n)
{
    char words[COMM_RAS_BYTES];
    bool in_trouble = false;
    size_t at = 0;

    for (const char *line = answer, *next; *line != '\0'; line = next) {
        next = next_line(line);
        if (is_rule(next)) {
            in_trouble = is_trouble(line);
            next = next_line(next);
        } else if (in_trouble) {
            at = add_words(line, next, words, sizeof(words), at);
        }
    }
    while (at > 0 && words[at - 1] == ' ')
        at--;
    words[text_utf8_cut(words, at)] = '\0';
    if (words[0] == '\0')
        snprintf(out, n, "NCCL reports no error");
    else
        snprintf(out, n, "NCCL reports: %s", words);
    out[text_utf8_cut(out, strlen(out))] = '\0';
}

/* ---- queries ---- */

static int left_ms(uint64_t begin_ms)
{
    uint64_t gone = clock_ms() - begin_ms;

    return gone < LIMIT_MS ? (int)(LIMIT_MS - gone) : 0;
}

static int connect_in_time(int fd, const struct addrinfo *to, uint64_t begin_ms)
{
    struct pollfd ready = { .fd = fd, .events = POLLOUT };
    int failed = 0;
    socklen_t len = sizeof(failed);

    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return errno;
    if (poll(&ready, 1, left_ms(begin_ms)) != 1)
        return ETIMEDOUT;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &len) == 0 ? failed : errno;
}

/* Connects to "host:port" or "[v6]:port"; returns -1 with errno. Only literals, because a resolver
 * could block. */
static int dial(const char *address, uint64_t begin_ms)
{
    const char *colon = strrchr(address, ':');
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV }, *to;
    char host[256];
    int fd, failed;

    errno = EINVAL;
    if (colon == NULL || colon == address)
        return -1;
    if (address[0] == '[' && colon[-1] == ']')
        snprintf(host, sizeof(host), "%.*s", (int)(colon - address - 2), address + 1);
    else
        snprintf(host, sizeof(host), "%.*s", (int)(colon - address), address);
    if (getaddrinfo(strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, colon + 1, &hints, &to) !=
        0)
        return -1;
    fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    failed = fd < 0 ? errno : connect_in_time(fd, to, begin_ms);
    freeaddrinfo(to);
    if (failed != 0 && fd >= 0)
        close(fd);
    errno = failed;
    return failed == 0 ? fd : -1;
}

/* Receives until the connection ends or the limit has passed; the answer may then be incomplete. */
static size_t receive(int fd, char *out, size_t n, uint64_t begin_ms)
{
    size_t got = 0;

    while (got + 1 < n) {
        struct pollfd ready = { .fd = fd, .events = POLLIN };
        ssize_t part;

        if (poll(&ready, 1, left_ms(begin_ms)) != 1)
            break;
        part = recv(fd, out + got, n - 1 - got, 0);
        if (part <= 0)
            break;
        got += (size_t)part;
    }
    out[got] = '\0';
    for (size_t i = 0; i < got; i++) /* a text ends at the first NUL */
        if (out[i] == '\0')
            out[i] = ' ';
    return got;
}

void comm_ras_query(char *out, size_t n)
{
    const char *address = getenv("NCCL_RAS_ADDR");
    uint64_t begin_ms = clock_ms();
    char *answer;
    int fd;

    if (address == NULL || address[0] == '\0')
        address = "127.0.0.1:28028"; /* default address of NCCL */
    fd = dial(address, begin_ms);
    if (fd < 0) {
        snprintf(out, n, "NCCL cannot be queried (RAS at %.80s: %s)", address, errno_text(errno));
        return;
    }
    answer = malloc(ANSWER_BYTES);
    if (answer == NULL || send(fd, QUESTION, sizeof(QUESTION) - 1, MSG_NOSIGNAL) < 0 ||
        receive(fd, answer, ANSWER_BYTES, begin_ms) == 0)
        snprintf(out, n, "NCCL reports no reason (RAS at %.80s is silent)", address);
    else
        comm_ras_extract(answer, out, n);
    free(answer);
    close(fd);
}
