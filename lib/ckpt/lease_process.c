#include "ckpt/lease_process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/process.h"

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
    struct process self;

    memset(out, 0, sizeof(*out));
    out->pid = (uint64_t)getpid();
    read_space(out->space);
    out->started = process_read(out->pid, &self) ? self.started : 0;
    if (gethostname(out->host, sizeof(out->host) - 1) != 0)
        out->host[0] = '\0';
    if (gmtime_r(&now, &utc) != NULL)
        strftime(out->since, sizeof(out->since), "%Y-%m-%dT%H:%M:%SZ", &utc);
}

bool lease_process_has_ended(const struct lease_process *p)
{
    char space[LEASE_PROCESS_BYTES];
    struct process now;

    read_space(space);
    if (p->pid == 0 || p->pid > INT32_MAX || space[0] == '\0' || strcmp(space, p->space) != 0)
        return false;
    if (kill((pid_t)p->pid, 0) < 0 && errno == ESRCH)
        return true;
    return process_read(p->pid, &now) &&
           (now.state == 'Z' || (p->started != 0 && now.started != p->started));
}
