#include "daemon/local_token.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/rng.h"
#include "base/text.h"

enum { RANDOM_BYTES = 32, FOLDERS = 3, FILE_BYTES = 4096 };

/* Writes the path of folder i: below XDG_RUNTIME_DIR; for a session without it; for a read-only root. Returns false if
 * XDG_RUNTIME_DIR is not set. */
static bool folder(int i, char *out, size_t n)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");

    if (i > 0)
        return snprintf(out, n, "%s/trainerd-%u", i == 1 ? "/tmp" : "/dev/shm",
                        (unsigned)geteuid()) < (int)n;
    return runtime != NULL && runtime[0] == '/' &&
           snprintf(out, n, "%s/trainerd", runtime) < (int)n;
}

/* Whether no other user can read or replace files in the folder. */
static bool is_private(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           (st.st_mode & 077) == 0;
}

static int make_folder(char *out, size_t n, struct err *err)
{
    for (int i = 0; i < FOLDERS; i++) {
        if (!folder(i, out, n))
            continue;
        if (mkdir(out, 0700) != 0 && errno != EEXIST) {
            (void)err_sys(err, errno, "create '%s'", out);
            continue; /* a session that has ended has no runtime folder */
        }
        if (is_private(out)) {
            if (access(out, W_OK) == 0)
                return 0;
            (void)err_sys(err, errno, "create a file in '%s'", out);
            continue;
        }
        return err_set(err, ERR_REFUSED, "'%s' is not a folder that only this user can read (mode 700): remove it, or set "
                                         "TRAINERD_TOKEN, or give --insecure", out);
    }
    return ERR_IO; /* /dev/shm was tried, so the error is set */
}

static int make_text(const uint16_t *ports, uint32_t n, struct local_token *t, struct buf *out,
                     struct err *err)
{
    uint8_t random[RANDOM_BYTES];

    if (rng_os(random, sizeof(random)) < 0)
        return err_set(err, ERR_IO, "the system gives no random numbers");
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(t->text + 2 * i, 3, "%02x", random[i]);
    buf_printf(out, "%s\n", t->text);
    for (uint32_t i = 0; i < n; i++)
        buf_printf(out, "%u\n", (unsigned)ports[i]);
    return out->failed ? err_set(err, ERR_NOMEM, "out of memory") : 0;
}

int local_token_publish(const uint16_t *ports, uint32_t n, struct local_token *out, struct err *err)
{
    char dir[4100];
    struct buf text = { 0 };
    int rc;

    *out = (struct local_token){ .fd = -1 };
    rc = make_text(ports, n, out, &text, err);
    if (rc == 0)
        rc = make_folder(dir, sizeof(dir), err);
    if (rc < 0)
        goto done;
    snprintf(out->path, sizeof(out->path), "%s/local-%u", dir, (unsigned)ports[0]);
    (void)unlink(out->path); /* of a command that was killed: the port is free */
    out->fd = open(out->path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (out->fd < 0 || flock(out->fd, LOCK_EX | LOCK_NB) != 0)
        rc = err_sys(err, errno, "create '%s'", out->path);
    else
        rc = fs_write_all(out->fd, text.data, text.len, out->path, err);
    if (rc < 0)
        local_token_remove(out);

done:
    buf_fini(&text);
    return rc < 0 ? err_wrap(err, rc, "the token of the local cluster") : 0;
}

void local_token_remove(struct local_token *t)
{
    if (t->fd < 0)
        return;
    (void)unlink(t->path); /* without the lock it is ignored */
    close(t->fd);
    t->fd = -1;
}

/* Returns the port of "127.x.y.z:port", "localhost:port" or "[::1]:port"; 0: another address. */
static uint16_t loopback_port(const char *address)
{
    const char *colon = strrchr(address, ':');
    char host[64];
    uint64_t port;
    struct in_addr a;

    if (colon == NULL || !text_u64(colon + 1, UINT16_MAX, &port))
        return 0;
    snprintf(host, sizeof(host), "%.*s", (int)(colon - address), address);
    if (strcmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
        (inet_pton(AF_INET, host, &a) == 1 && (ntohl(a.s_addr) >> 24) == 127))
        return (uint16_t)port;
    return 0;
}

static bool has_port(char *text, uint16_t port)
{
    char *rest = NULL;

    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        if (strtoul(line, NULL, 10) == port)
            return true;
    return false;
}

/* Reads the token from an open file, if its command runs and has a task at the port. */
static bool read_file(int fd, uint16_t port, char out[SECURITY_TOKEN_BYTES])
{
    char text[FILE_BYTES];
    ssize_t n;
    char *end;
    struct stat st;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
        flock(fd, LOCK_SH | LOCK_NB) == 0)
        return false;
    n = read(fd, text, sizeof(text) - 1);
    if (n <= 0)
        return false;
    text[n] = '\0';
    end = strchr(text, '\n');
    if (end == NULL || end - text >= SECURITY_TOKEN_BYTES || !has_port(end + 1, port))
        return false;
    snprintf(out, SECURITY_TOKEN_BYTES, "%.*s", (int)(end - text), text);
    return true;
}

bool local_token_find(const char *address, char out[SECURITY_TOKEN_BYTES])
{
    uint16_t port = loopback_port(address);
    bool is_found = false;
    char path[4100];

    for (int i = 0; port != 0 && !is_found && i < FOLDERS; i++) {
        DIR *dir = folder(i, path, sizeof(path)) && is_private(path) ? opendir(path) : NULL;
        const struct dirent *e;

        while (dir != NULL && !is_found && (e = readdir(dir)) != NULL) {
            int fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

            is_found = fd >= 0 && read_file(fd, port, out);
            if (fd >= 0)
                close(fd);
        }
        if (dir != NULL)
            closedir(dir);
    }
    return is_found;
}
