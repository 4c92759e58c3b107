/* ctl_explain.c - `trainerctl explain`: what an exit code of trainerd, or a signal, means. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"
#include "base/text.h"
#include "daemon/ctl.h"
#include "daemon/doc_path.h"
#include "daemon/exit_codes.h"

static const char usage[] = "usage: trainerctl explain [CODE | SIGNAL]\n"
                            "What an exit code of trainerd (138), or the signal that ended it (SIGKILL), means and what to\n"
                            "do. Without an argument: all of them.\n";

static void print(const struct exit_code *c)
{
    char remedy[6000];

    doc_path_replace(c->remedy, remedy, sizeof(remedy));
    printf("%d: %s\n     what to do:     %s\n     the supervisor: %s\n", c->code, c->meaning,
           remedy, c->supervisor);
}

static const struct exit_code *find(uint64_t code)
{
    for (size_t i = 0; i < n_exit_codes; i++)
        if ((uint64_t)exit_codes[i].code == code)
            return &exit_codes[i];
    return NULL;
}

/* "SIGKILL", "KILL" or "kill"; 0: no signal has this name. */
static int signal_of(const char *name)
{
    if (strncasecmp(name, "SIG", 3) == 0)
        name += 3;
    for (int n = 1; n < NSIG; n++) {
        const char *known = sigabbrev_np(n);

        if (known != NULL && strcasecmp(known, name) == 0)
            return n;
    }
    return 0;
}

static int explain_signal(int n)
{
    printf("%d: signal %d (SIG%s: %s) ended the process\n"
           "     what to do:     find the sender, for example with `journalctl` or `auditctl`\n"
           "     the supervisor: restarts it; the task joins the group again\n",
           EXIT_SIGNAL + n, n, sigabbrev_np(n), sigdescr_np(n));
    return CTL_OK;
}

static int refuse(const char *text)
{
    fprintf(stderr, "trainerctl: explain: '%.80s': expected an exit code (", text);
    for (size_t i = 0; i < n_exit_codes; i++)
        fprintf(stderr, "%s%d", i > 0 ? ", " : "", exit_codes[i].code);
    fprintf(stderr, ") or a signal, such as SIGKILL; trainerd has no other\n");
    return CTL_USAGE;
}

int ctl_explain(int argc, char **argv)
{
    const struct exit_code *c;
    uint64_t code;
    int n;

    if (argc > 2) {
        fputs(usage, stderr);
        return CTL_USAGE;
    }
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return CTL_OK;
    }
    if (argc == 1) {
        for (size_t i = 0; i < n_exit_codes; i++)
            print(&exit_codes[i]);
        return CTL_OK;
    }
    n = signal_of(argv[1]);
    if (n == SIGINT || n == SIGUSR1 || n == SIGUSR2)
        n = SIGTERM; /* trainerd handles them in the same way, so 138 is never the code of SIGUSR1 */
    if (n > 0)
        code = EXIT_SIGNAL + (uint64_t)n;
    else if (!text_u64(argv[1], 255, &code))
        return refuse(argv[1]);
    c = find(code);
    if (c != NULL) {
        print(c);
        return CTL_OK;
    }
    n = code > EXIT_SIGNAL && code - EXIT_SIGNAL < NSIG ? (int)(code - EXIT_SIGNAL) : 0;
    if (n == 0 || sigabbrev_np(n) == NULL)
        return refuse(argv[1]);
    return explain_signal(n);
}
