#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The name of the program, in parentheses, may contain blanks and parentheses. */
bool process_read(uint64_t pid, struct process *out)
{
    char path[64], text[1024];
    const char *open, *close;
    size_t n;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%" PRIu64 "/stat", pid);
    f = fopen(path, "re");
    if (f == NULL)
        return false;
    n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    open = strchr(text, '(');
    close = strrchr(text, ')');
    if (open == NULL || close == NULL || close < open)
        return false;
    memset(out, 0, sizeof(*out));
    n = (size_t)(close - open - 1);
    memcpy(out->name, open + 1, n < sizeof(out->name) - 1 ? n : sizeof(out->name) - 1);
    return sscanf(close + 1,
                  " %c %" SCNu64
                  " %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64,
                  &out->state, &out->parent, &out->started) == 3;
}

bool process_folder(char *out, size_t n)
{
    ssize_t len = readlink("/proc/self/exe", out, n);

    if (len < 0)
        return false;
    if ((size_t)len >= n) {
        errno = ENAMETOOLONG;
        return false;
    }
    out[len] = '\0';
    *strrchr(out, '/') = '\0'; /* the kernel writes an absolute path */
    return true;
}

void process_open_standard_files(void)
{
    int fd;

    /* open() returns the lowest closed descriptor. These descriptors are inherited, like the ones that a shell opens. */
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int process_close_output(const char *program, int code, int failure)
{
    struct pollfd out = { .fd = STDOUT_FILENO };

    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    if (poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) /* a pipe without a reader */
        return code;
    fprintf(stderr, "%s: cannot write to standard output: is the disk full?\n", program);
    return code == 0 ? failure : code;
}
