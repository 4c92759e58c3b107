#include "ckpt/lease_process.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Reads state and start time of a process from /proc/PID/stat. The name of the program, in
 * parentheses, may contain blanks and parentheses. */
static bool read_stat(uint64_t pid, char *state, uint64_t *started)
{
    char path[64], text[1024];
    const char *at;
    size_t n;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%" PRIu64 "/stat", pid);
    f = fopen(path, "re");
    if (f == NULL)
        return false;
    n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    at = strrchr(text, ')');
    return at != NULL && sscanf(at + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
                                        "%*d %*d %*d %" SCNu64, state, started) == 2;
}

/* Writes the boot of the host and the process namespace; "": unknown. */
static void read_space(char out[LEASE_PROCESS_BYTES])
{
    char boot[64] = "", ns[64] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (f != NULL) {
        if (fgets(boot, sizeof(boot), f) != NULL)
            boot[strcspn(boot, "\n")] = '\0';
        fclose(f);
    }
    if (readlink("/proc/self/ns/pid", ns, sizeof(ns) - 1) < 0)
        ns[0] = '\0';
    out[0] = '\0';
    if (boot[0] != '\0' && ns[0] != '\0')
        snprintf(out, LEASE_PROCESS_BYTES, "%s %s", boot, ns);
}

void lease_process_self(struct lease_process *out)
{
    time_t now = time(NULL);
    struct tm utc;
    char state;

    memset(out, 0, sizeof(*out));
    out->pid = (uint64_t)getpid();
    read_space(out->space);
    if (!read_stat(out->pid, &state, &out->started))
        out->started = 0;
    if (gethostname(out->host, sizeof(out->host) - 1) != 0)
        out->host[0] = '\0';
    if (gmtime_r(&now, &utc) != NULL)
        strftime(out->since, sizeof(out->since), "%Y-%m-%dT%H:%M:%SZ", &utc);
}

bool lease_process_has_ended(const struct lease_process *p)
{
    char space[LEASE_PROCESS_BYTES], state;
    uint64_t started;

    read_space(space);
    if (p->pid == 0 || p->pid > INT32_MAX || space[0] == '\0' || strcmp(space, p->space) != 0)
        return false;
    if (kill((pid_t)p->pid, 0) < 0 && errno == ESRCH)
        return true;
    return read_stat(p->pid, &state, &started) && (state == 'Z' || (p->started != 0 && started != p->started));
}
