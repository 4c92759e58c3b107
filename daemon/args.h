/* args.h - flags of a command as rows of a table; each may also come from the environment
 * (TRAINERD_JOB for --job), which is how a pod is configured. A flag wins over the environment. */
#ifndef DAEMON_ARGS_H
#define DAEMON_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct err;

struct arg {
    const char *name;  /* "job": written --job VALUE or --job=VALUE */
    const char *value; /* what the help calls the value; NULL: a switch */
    const char *env;   /* "TRAINERD_JOB"; NULL: none. A switch is on for 1, true, yes */
    const char *help;  /* lines after the first are indented by the printer */
    const char **text; /* where the value goes; for a switch NULL */
    bool *flag;        /* where a switch goes */
};

/* Takes flags out of argv, leaving the rest in order in argv[1..*argc-1]; "--" ends flags.
 * Errors: ERR_INPUT naming the flag, with the nearest known one. */
int args_parse(const struct arg *table, size_t n, int *argc, char **argv, struct err *err);
void args_help(const struct arg *table, size_t n, FILE *out);

#endif
