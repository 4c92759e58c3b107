/* run_cases.c - runs each case of an archive in its own process and prints one line per case. The
 * columns, separated by tabs, are: name, verdict (pass, refused, wrong), opset, ops, ONNX data
 * types of the inputs and outputs (0: not a tensor), reason. A case that crashes or runs for more
 * than 20 seconds is wrong. The program test/conformance/conformance counts the lines. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "harness/onnx_case.h"
#include "proto/onnx.pb-c.h"

enum { LIMIT_SECONDS = 20 };

struct result { /* in memory shared with the child process, which fills it */
    enum onnx_verdict verdict;
    char reason[2048];
};

static void print_types(Onnx__ValueInfoProto *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const Onnx__TypeProto__Tensor *t =
            list[i]->type != NULL ? list[i]->type->tensor_type : NULL;

        printf("%d ", t != NULL ? t->elem_type : 0);
    }
}

/* Prints the columns opset, ops and types. */
static void print_model(const struct onnx_case *c)
{
    Onnx__ModelProto *m = onnx__model_proto__unpack(NULL, c->model.n, c->model.data);
    const Onnx__GraphProto *g = m != NULL ? m->graph : NULL;
    long opset = 0;

    for (size_t i = 0; m != NULL && i < m->n_opset_import; i++)
        if (m->opset_import[i]->domain == NULL || m->opset_import[i]->domain[0] == '\0')
            opset = (long)m->opset_import[i]->version;
    printf("%ld\t", opset);
    for (size_t i = 0; g != NULL && i < g->n_node; i++) {
        const Onnx__NodeProto *n = g->node[i];
        bool is_plain = n->domain == NULL || n->domain[0] == '\0';

        printf("%s%s%s ", is_plain ? "" : n->domain, is_plain ? "" : ".", n->op_type);
    }
    printf("\t");
    if (g != NULL) {
        print_types(g->input, g->n_input);
        print_types(g->output, g->n_output);
    }
    if (m != NULL)
        onnx__model_proto__free_unpacked(m, NULL);
}

static void run_case(const struct onnx_case *c, struct result *result)
{
    int status = 0;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(LIMIT_SECONDS);
        result->verdict = onnx_case_run(c, result->reason, sizeof(result->reason));
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    result->verdict = ONNX_WRONG;
    snprintf(result->reason, sizeof(result->reason), "the process was ended by signal %d",
             WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

int main(int argc, char **argv)
{
    static const char *const names[] = { "pass", "refused", "wrong" };
    struct result *result;
    struct onnx_archive *a;
    struct onnx_case c;
    int got;

    if (argc != 2) {
        fprintf(stderr, "usage: run_cases ARCHIVE\n");
        return 2;
    }
    a = onnx_archive_open(argv[1]);
    result = mmap(NULL, sizeof(*result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(result != MAP_FAILED);
    if (a == NULL) {
        fprintf(stderr, "run_cases: cannot open '%s'\n", argv[1]);
        return 2;
    }
    while ((got = onnx_archive_next(a, &c)) == 1) {
        memset(result, 0, sizeof(*result));
        run_case(&c, result);
        for (char *p = result->reason; *p != '\0'; p++)
            if (*p == '\n' || *p == '\t')
                *p = ' ';
        printf("%s\t%s\t", c.name, names[result->verdict]);
        print_model(&c);
        printf("\t%s\n", result->reason);
        onnx_case_free(&c);
    }
    onnx_archive_close(a);
    if (got < 0)
        fprintf(stderr, "run_cases: '%s' is damaged\n", argv[1]);
    return got < 0 ? 2 : 0;
}
