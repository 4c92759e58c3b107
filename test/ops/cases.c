/* cases.c - `ops test` and `ops gradient`: run the programs test/op/test_*.c, which hold the cases of
 * the ops, and count the cases of each op that they report (harness/op_record.h). */
#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/op_record.h"
#include "ops/ops.h"

enum { SECONDS = 600, MAX_PATH = 4096 }; /* limit of a program */

struct run {
    char folder[32]; /* temporary: the reports, and the output of each program */
    char record[64];
    size_t n_failed; /* programs */
    uint32_t *counts[3]; /* for each letter of `kinds`: for each row, the number of cases that passed */
};

static const char kinds[] = { OP_RECORD_FORWARD, OP_RECORD_ORACLE, OP_RECORD_GRADIENT };
enum { FORWARD, ORACLE, GRADIENT };

static void print_output(const char *path, const char *of)
{
    char line[1024];
    FILE *f = fopen(path, "r");

    printf("FAILED %s\n", of);
    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, "[  ERROR", 8) == 0 || strncmp(line, "[   LINE", 8) == 0 ||
            strncmp(line, "[  FAILED", 9) == 0)
            printf("    %s", line);
    if (f != NULL)
        fclose(f);
}

static pid_t start(const char *program, const char *output)
{
    pid_t pid;

    fflush(stdout); /* the child inherits what is buffered */
    pid = fork();
    if (pid != 0)
        return pid;
    alarm(SECONDS); /* also limits the program */
    if (freopen("/dev/null", "r", stdin) != NULL && freopen(output, "w", stdout) != NULL &&
        dup2(1, 2) == 2)
        execl(program, program, (char *)NULL);
    _exit(127);
}

/* Runs all programs, as many at a time as there are cores. Returns their number, or -1. */
static int run_all(struct run *r, const char *pattern)
{
    long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    char output[128];
    pid_t *pids;
    glob_t found;
    size_t started = 0, ended = 0, n;

    if (glob(pattern, 0, NULL, &found) != 0)
        return -1;
    for (n = 0, started = 0; started < found.gl_pathc; started++) { /* leaves out object files */
        char *path = found.gl_pathv[started];

        if (strchr(strrchr(path, '/'), '.') == NULL) {
            found.gl_pathv[started] = found.gl_pathv[n];
            found.gl_pathv[n++] = path;
        }
    }
    started = 0;
    pids = calloc(n, sizeof(*pids));
    while (pids != NULL && ended < n) {
        int status;
        pid_t pid;

        while (started < n && started - ended < (size_t)(n_cores > 0 ? n_cores : 1)) {
            snprintf(output, sizeof(output), "%s/%zu", r->folder, started);
            pids[started] = start(found.gl_pathv[started], output);
            if (pids[started++] < 0) {
                r->n_failed++;
                ended++;
            }
        }
        pid = wait(&status);
        for (size_t i = 0; i < started; i++)
            if (pids[i] == pid) {
                snprintf(output, sizeof(output), "%s/%zu", r->folder, i);
                if (status != 0)
                    print_output(output, found.gl_pathv[i]);
                unlink(output);
                r->n_failed += status != 0;
                ended++;
            }
    }
    free(pids);
    globfree(&found);
    return (int)n;
}

static void read_record(struct run *r, size_t n_rows)
{
    FILE *f = fopen(r->record, "r");
    unsigned row;
    char kind;

    while (f != NULL && fscanf(f, "%u %c", &row, &kind) == 2)
        for (size_t k = 0; row < n_rows && k < sizeof(kinds); k++)
            r->counts[k][row] += kinds[k] == kind;
    if (f != NULL)
        fclose(f);
}

static int run_cases(const struct ops_options *o, struct run *r)
{
    char pattern[MAX_PATH];
    const char *slash = strrchr(o->program, '/');
    size_t n;
    int n_programs;

    (void)op_all(&n);
    *r = (struct run){ .folder = "/tmp/trainerd-ops-XXXXXX" };
    for (size_t k = 0; k < sizeof(kinds); k++)
        r->counts[k] = calloc(n, sizeof(*r->counts[k]));
    if (r->counts[0] == NULL || r->counts[1] == NULL || r->counts[2] == NULL ||
        mkdtemp(r->folder) == NULL)
        return -1;
    snprintf(r->record, sizeof(r->record), "%s/record", r->folder);
    setenv("TRAINERD_OPS_RECORD", r->record, 1);
    if (o->n_ops > 0)
        setenv("TRAINERD_OPS_ONLY", o->ops[0], 1);
    if (strcmp(o->device, "cuda") == 0)
        setenv("TRAINERD_TEST_CUDA", "1", 1);
    else
        unsetenv("TRAINERD_TEST_CUDA");
    snprintf(pattern, sizeof(pattern), "%.*s/../op/test_*",
             slash != NULL ? (int)(slash - o->program) : 1, slash != NULL ? o->program : ".");
    fflush(stdout);
    n_programs = run_all(r, pattern);
    if (n_programs > 0)
        read_record(r, n);
    else
        fprintf(stderr, "ops: %s: no test program found; build them with `make test-programs`\n",
                pattern);
    unlink(r->record);
    rmdir(r->folder);
    return n_programs > 0 ? 0 : -1;
}

static void free_run(struct run *r)
{
    for (size_t k = 0; k < sizeof(kinds); k++)
        free(r->counts[k]);
}

static int run_mode(const struct ops_options *o, bool gradient)
{
    const struct cuda_api *cuda = strcmp(o->device, "cuda") == 0 ? ops_open_gpu() : NULL;
    size_t n, n_without = 0;
    const struct op_def *const *all = op_all(&n);
    struct run r;
    int rc;

    if (cuda == NULL && strcmp(o->device, "cuda") == 0)
        return 2;
    rc = run_cases(o, &r);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        char name[96], opsets[32];
        uint32_t cases = r.counts[gradient ? GRADIENT : FORWARD][i];
        const char *why = ops_exempt(cuda, all[i], gradient);

        if (!ops_is_chosen(o, all[i]->name))
            continue;
        printf("%-36s %-10s ", ops_name(all[i], name, sizeof(name)),
               ops_opsets(all[i], opsets, sizeof(opsets)));
        if (cases > 0 && gradient)
            printf("%u cases\n", cases);
        else if (cases > 0)
            printf("%u cases, %u with an oracle\n", cases, r.counts[ORACLE][i]);
        else
            printf("%s\n", why != NULL ? why : "ERROR: no case; expected one in test/op");
        n_without += cases == 0 && why == NULL;
    }
    if (rc == 0 && r.n_failed + n_without > 0)
        printf("%zu programs failed, %zu ops without a case\n", r.n_failed, n_without);
    free_run(&r);
    return rc < 0 ? 2 : r.n_failed + n_without > 0;
}

int ops_test(const struct ops_options *o)
{
    return run_mode(o, false);
}

int ops_gradient(const struct ops_options *o)
{
    return run_mode(o, true);
}
