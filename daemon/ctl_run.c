/* ctl_run.c - `trainerctl run`: runs a graph once, on arrays from files, so that its outputs and
 * gradients can be compared with those of another framework. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/text.h"
#include "daemon/ctl.h"
#include "data/npy.h"
#include "device/device.h"
#include "graph/graph.h"
#include "op/op.h"

static const uint64_t max_file_bytes = (uint64_t)3 << 30;

enum { MAX_INPUTS = 1024 };

struct run {
    const char *model, *directory, *format;
    const char *given[MAX_INPUTS]; /* NAME=FILE */
    uint32_t n_given;
    bool gradients, inference;

    struct arena mem;
    struct graph *graph;
    struct plan *plan;
    struct device_mem work;
    struct plan_feed *feeds;    /* [n_given] */
    struct tensor *arrays;      /* [n_given] */
    void **owned;               /* [n_given] memory that npy_read() allocated */
    const char **outputs;
    uint32_t n_outputs;
    struct buf written;         /* names of the files written, one line each */
};

static const char usage[] =
    "usage: trainerctl run MODEL --input NAME=FILE... -o DIR [--gradients] [--inference]\n"
    "\n"
    "Runs the graph of an ONNX file once. Each input comes from a .npy file or an ONNX TensorProto\n"
    "(.pb) and decides its own shape; weights may be initializers of the file or inputs. Each output\n"
    "NAME becomes DIR/NAME.npy (characters that a file name should not have become _), or .pb if the\n"
    "first input was one.\n"
    "  --gradients        also backward: DIR/NAME.grad.npy for every float32 input, the gradient of the\n"
    "                     sum over all elements of all float32 outputs; a warning names inputs of nodes\n"
    "                     that are not differentiated\n"
    "  --inference        nodes that the file has in training form (Dropout, BatchNormalization) take that\n"
    "                     of inference; else Dropout draws from seed 0\n"
    "  --format npy|pb    of what is written\n"
    "Types: float16 and bfloat16 are computed in float32 and rounded once for each node; so is float64,\n"
    "with a warning; integers are exact.\n"
    "Exit code 0: done; 2: model or arrays are wrong; 3: something in the model is not supported, and\n"
    "its name is on the last line; 1: anything else.\n";

/* ---- arguments ---- */

/* Returns the value of "--name VALUE" or "--name=VALUE", NULL if argv[*i] is another flag. */
static const char *flag_value(int argc, char **argv, int *i, const char *name)
{
    size_t n = strlen(name);

    if (strncmp(argv[*i], name, n) != 0)
        return NULL;
    if (argv[*i][n] == '=' && name[1] == '-')
        return argv[*i] + n + 1;
    if (argv[*i][n] != '\0')
        return NULL;
    return *i + 1 < argc ? argv[++*i] : "";
}

static int parse_word(struct run *r, int argc, char **argv, int *i, struct err *err)
{
    const char *word = argv[*i], *value;

    if (strcmp(word, "--gradients") == 0)
        r->gradients = true;
    else if (strcmp(word, "--inference") == 0)
        r->inference = true;
    else if ((value = flag_value(argc, argv, i, "-o")) != NULL ||
             (value = flag_value(argc, argv, i, "--output")) != NULL)
        r->directory = value;
    else if ((value = flag_value(argc, argv, i, "--format")) != NULL)
        r->format = value;
    else if ((value = flag_value(argc, argv, i, "--input")) != NULL ||
             (word[0] != '-' && r->model != NULL && strchr(word, '=') != NULL && (value = word))) {
        if (r->n_given == MAX_INPUTS)
            return err_set(err, ERR_INPUT, "more than %d inputs", MAX_INPUTS);
        r->given[r->n_given++] = value;
    } else if (word[0] != '-' && r->model == NULL) {
        r->model = word;
    } else {
        return err_set(err, ERR_INPUT, "'%.80s' is not an argument of run", word);
    }
    return 0;
}

static int parse_all(struct run *r, int argc, char **argv, struct err *err)
{
    int rc = 0;

    for (int i = 1; i < argc && rc == 0; i++)
        rc = parse_word(r, argc, argv, &i, err);
    if (rc < 0)
        return rc;
    if (r->model == NULL)
        return err_set(err, ERR_INPUT, "the model is missing");
    if (r->directory == NULL || r->directory[0] == '\0')
        return err_set(err, ERR_INPUT, "-o DIR is missing: the folder for the outputs");
    rc = fs_check_path(r->model, err);
    if (rc < 0)
        return rc;
    rc = fs_check_path(r->directory, err);
    if (rc < 0)
        return err_wrap(err, rc, "-o");
    if (r->format != NULL && strcmp(r->format, "npy") != 0 && strcmp(r->format, "pb") != 0)
        return err_set(err, ERR_INPUT, "--format: expected npy or pb, found '%.40s'", r->format);
    return 0;
}

/* ---- arrays in ---- */

static bool ends_in(const char *path, const char *ending)
{
    size_t n = strlen(path), m = strlen(ending);

    return n >= m && strcmp(path + n - m, ending) == 0;
}

static int read_array(struct run *r, uint32_t i, struct err *err)
{
    const char *equals = strchr(r->given[i], '=');
    const char *path = equals != NULL ? equals + 1 : "";
    struct tensor *t = &r->arrays[i];
    char *name;
    int rc;

    if (equals == NULL || equals == r->given[i] || path[0] == '\0')
        return err_set(err, ERR_INPUT, "--input: expected NAME=FILE, found '%.80s'", r->given[i]);
    rc = fs_check_path(path, err);
    if (rc < 0)
        return err_wrap(err, rc, "--input");
    name = arena_strndup(&r->mem, r->given[i], (size_t)(equals - r->given[i]));
    if (name == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    if (ends_in(path, ".pb")) {
        rc = graph_read_tensor_file(path, max_file_bytes, &r->mem, t, err);
    } else {
        rc = npy_read(path, max_file_bytes, t, err);
        r->owned[i] = rc == 0 ? t->data : NULL;
    }
    if (rc < 0)
        return err_wrap(err, rc, "input '%s'", name);
    if (i == 0 && r->format == NULL)
        r->format = ends_in(path, ".pb") ? "pb" : "npy";
    r->feeds[i] =
        (struct plan_feed){ .name = name, .source = path, .dtype = t->dtype, .shape = t->shape,
                            .value = t->data };
    return 0;
}

static int read_arrays(struct run *r, struct err *err)
{
    int rc = 0;

    r->feeds = arena_array(&r->mem, r->n_given, sizeof(*r->feeds));
    r->arrays = arena_array(&r->mem, r->n_given, sizeof(*r->arrays));
    r->owned = arena_array(&r->mem, r->n_given, sizeof(*r->owned));
    if (r->feeds == NULL || r->arrays == NULL || r->owned == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < r->n_given && rc == 0; i++)
        rc = read_array(r, i, err);
    return rc;
}

/* ---- the run ---- */

static int make_plan(struct run *r, struct err *err)
{
    const struct graph_io *out = graph_outputs(r->graph, &r->n_outputs);
    struct plan_opts o = { .purpose = PLAN_RUN,
                           .feeds = r->feeds,
                           .n_feeds = r->n_given,
                           .sum_outputs = r->gradients,
                           .feed_grads = r->gradients,
                           .training = !r->inference };
    const char *const *notes;
    const char *first;
    uint32_t n;
    int rc;

    r->outputs = arena_array(&r->mem, r->n_outputs, sizeof(*r->outputs));
    if (r->outputs == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < r->n_outputs; i++)
        r->outputs[i] = out[i].name;
    o.keep = r->outputs;
    o.n_keep = r->n_outputs;
    rc = plan_new(r->graph, &o, &r->plan, err);
    if (rc < 0)
        return rc;
    n = plan_rounded(r->plan, &first);
    if (n > 0)
        fprintf(stderr,
                "trainerctl: warning: %u node%s of float64 %s computed in float32 (first '%s')\n",
                n, n > 1 ? "s" : "", n > 1 ? "are" : "is", first);
    notes = plan_notes(r->plan, &n);
    for (uint32_t i = 0; i < n; i++)
        fprintf(stderr, "trainerctl: warning: %s\n", notes[i]);
    return device_mem_open(&r->work, plan_work_bytes(r->plan), false, err);
}

static int compute(struct run *r, struct err *err)
{
    const struct op_run run = { .loss_scale = 1 };
    int rc;

    op_thread_init();
    plan_bind(r->plan, NULL, r->work.base);
    for (uint32_t i = 0; i < r->n_given; i++) {
        const struct tensor *to = plan_input(r->plan, i);

        if (tensor_bytes(to) > 0)
            memcpy(to->data, r->arrays[i].data, tensor_bytes(to));
    }
    rc = plan_forward(r->plan, &run, err);
    if (rc == 0 && r->gradients)
        rc = plan_backward(r->plan, &run, NULL, NULL, NULL, err);
    return rc;
}

/* ---- arrays out ---- */

/* Returns DIR/NAME.npy in r->mem, NULL if out of memory. A number distinguishes names that would
 * otherwise become the same file name. */
static char *file_name(struct run *r, const char *name, const char *suffix)
{
    char *safe = arena_strdup(&r->mem, name), *line = NULL;

    for (char *c = safe; c != NULL && *c != '\0'; c++)
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *c) == NULL)
            *c = '_';
    if (safe != NULL && safe[0] == '.')
        safe[0] = '_';
    for (uint32_t k = 1; safe != NULL; k++) {
        char number[16] = "";

        if (k > 1)
            snprintf(number, sizeof(number), "_%u", k);
        line = arena_printf(&r->mem, "\n%s%s%s.%s\n", safe, number, suffix, r->format);
        if (line == NULL || r->written.data == NULL || strstr(r->written.data, line) == NULL)
            break;
    }
    if (line == NULL)
        return NULL;
    buf_str(&r->written, line);
    line[strlen(line) - 1] = '\0';
    return arena_printf(&r->mem, "%s/%s", r->directory, line + 1);
}

static int write_array(struct run *r, const char *kind, const char *name, const char *suffix,
                       const struct tensor *t, struct err *err)
{
    char *path = file_name(r, name, suffix), shape[192];
    int rc;

    if (path == NULL || r->written.failed)
        return err_set(err, ERR_NOMEM, "out of memory");
    rc = strcmp(r->format, "pb") == 0 ? graph_write_tensor_file(path, name, t, err)
                                      : npy_write(path, t, err);
    if (rc == ERR_UNSUPPORTED && strcmp(r->format, "npy") == 0)
        return err_set(
            err, rc,
            "%s '%s': .npy has no type for %s; expected another format: run again with --format pb",
            kind, name, tensor_dtype_name(t->dtype));
    if (rc == 0)
        printf("%-8s %s %s %s %s\n", kind, name, tensor_dtype_name(t->dtype),
               shape_print(&t->shape, shape, sizeof(shape)), path);
    return rc;
}

static int write_gradient(struct run *r, uint32_t i, struct err *err)
{
    const struct tensor *t = plan_input_grad(r->plan, i);
    struct tensor zero = r->arrays[i];

    if (r->arrays[i].dtype != TENSOR_F32)
        return 0;
    if (t == NULL) { /* no output depends on it, or only through step functions */
        zero.data = arena_alloc(&r->mem, tensor_bytes(&zero));
        if (zero.data == NULL)
            return err_set(err, ERR_NOMEM, "out of memory");
        t = &zero;
    }
    return write_array(r, "gradient", r->feeds[i].name, ".grad", t, err);
}

static int write_all(struct run *r, struct err *err)
{
    int rc = fs_mkdirs(r->directory, err);

    if (r->format == NULL)
        r->format = "npy";
    for (uint32_t i = 0; i < r->n_outputs && rc == 0; i++)
        rc = write_array(r, "output", r->outputs[i], "", plan_tensor(r->plan, r->outputs[i]), err);
    for (uint32_t i = 0; r->gradients && i < r->n_given && rc == 0; i++)
        rc = write_gradient(r, i, err);
    return rc;
}

static int run_model(struct run *r, struct err *err)
{
    const struct graph_opts o = { .path = r->model, .all_constant = true };
    int rc = graph_import(&o, &r->graph, err);

    if (rc == 0)
        rc = read_arrays(r, err);
    if (rc == 0)
        rc = make_plan(r, err);
    if (rc == 0)
        rc = compute(r, err);
    return rc == 0 ? write_all(r, err) : rc;
}

static void close_run(struct run *r)
{
    plan_free(r->plan);
    device_mem_close(&r->work);
    graph_free(r->graph);
    for (uint32_t i = 0; r->owned != NULL && i < r->n_given; i++)
        free(r->owned[i]);
    buf_fini(&r->written);
    arena_fini(&r->mem);
    free(r);
}

int ctl_run(int argc, char **argv)
{
    struct run *r;
    struct err err = { 0 };
    int rc;

    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return CTL_OK;
    }
    r = calloc(1, sizeof(*r));
    CHECK(r != NULL);
    r->work.fd = -1;
    rc = parse_all(r, argc, argv, &err);
    if (rc == 0)
        rc = run_model(r, &err);
    else
        fputs(usage, stderr);
    if (rc < 0)
        fprintf(stderr, "trainerctl: %s\n", err.text);
    close_run(r);
    return ctl_exit_code(rc);
}
