/* exit_codes.h - what an exit code of trainerd means: the one table for `trainerd --help`,
 * `trainerctl explain` and the table of systemd/README.md (test/e2e/test_docs.py compares them).
 * Threads: any. */
#ifndef DAEMON_EXIT_CODES_H
#define DAEMON_EXIT_CODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { EXIT_SIGNAL = 128 }; /* a process that signal n ended has the code EXIT_SIGNAL + n in a shell */

struct exit_code {
    int code;
    const char *meaning, *remedy, *supervisor; /* one sentence each, without a period at the end */
    bool is_signal; /* trainerd itself never returns it */
};
extern const struct exit_code exit_codes[]; /* ascending */
extern const size_t n_exit_codes;

void exit_codes_help(FILE *out); /* the codes that trainerd itself returns, for --help */

#endif
