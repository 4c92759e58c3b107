/* ctl_inspect.c - `trainerctl inspect`: prints a network as trainerd imports and plans it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/text.h"
#include "base/vec.h"
#include "daemon/args.h"
#include "daemon/ctl.h"
#include "daemon/inspect_attention.h"
#include "daemon/inspect_batch.h"
#include "daemon/inspect_tensors.h"
#include "graph/graph.h"
#include "op/op.h"

struct figures { /* memory and operations of a plan */
    bool is_known;
    uint64_t work_bytes;
    double flops; /* of the forward pass of one sample */
};

struct inspect {
    const char *path, *batch_text, *shape_text, *precision_text, *norm_text;
    enum graph_norm batch_norm;
    enum plan_precision precision;
    bool json, print_plan, print_ops, help;
    struct inspect_batch batch;
    struct arena mem;
    struct graph *graph; /* imported, or the result of graph_list_ops() if the import fails */
    bool is_imported;
    struct figures training, inference;
    struct inspect_attention attention; /* of the training plan, else of the inference plan */
    VEC(char *) notes;   /* owned by mem; of both plans, in addition to those of the graph */
    struct buf plan;     /* the plans as text; empty without --plan */
    int problem_code;    /* error code that explains missing figures; 0: none */
    char *problem;
};

/* ---- looking ---- */

static void set_problem(struct inspect *in, int code, const struct err *err)
{
    if (in->problem != NULL)
        return;
    in->problem_code = code;
    in->problem = arena_strdup(&in->mem, err->text);
}

/* Sets *out to the shape of an input: that of the file, or that of --shape NAME=D,D,... */
static int read_shape(const struct inspect *in, const struct graph_io *io, struct shape *out,
                      struct err *err)
{
    size_t n = strlen(io->name);
    const char *at = in->shape_text;
    struct shape s = { 0 };

    if (at == NULL || strncmp(at, io->name, n) != 0 || at[n] != '=') {
        *out = io->shape;
        return 0;
    }
    for (at += n; *at == '=' || *at == ',';) {
        char *end;

        if (s.rank == TENSOR_MAX_RANK)
            return err_set(err, ERR_INPUT, "--shape: more than %d dimensions", TENSOR_MAX_RANK);
        s.dim[s.rank] = strtoll(at + 1, &end, 10);
        if (end == at + 1 || s.dim[s.rank] < 0)
            return err_set(err, ERR_INPUT, "--shape: expected NAME=D,D,..., found '%.80s'",
                           in->shape_text);
        s.rank++;
        at = end;
    }
    if (*at != '\0')
        return err_set(err, ERR_INPUT, "--shape: expected NAME=D,D,..., found '%.80s'",
                       in->shape_text);
    *out = s;
    return 0;
}

static int make_feed(const struct inspect *in, const struct graph_io *io, struct plan_feed *feed,
                     struct err *err)
{
    struct shape s = { 0 };
    int rc = read_shape(in, io, &s, err);

    if (rc < 0)
        return rc;
    *feed = (struct plan_feed){ .name = io->name, .source = io->name, .dtype = io->dtype };
    feed->shape.rank = s.rank > 0 ? s.rank - 1 : 0;
    for (uint32_t k = 0; k < feed->shape.rank; k++) {
        feed->shape.dim[k] = s.dim[k + 1];
        if (s.dim[k + 1] < 0)
            return err_set(err, ERR_INPUT,
                           "input '%s': dimension %u is dynamic; set its size with --shape "
                           "%s=N,... (batch first)",
                           io->name, k + 1, io->name);
    }
    return 0;
}

static int make_feeds(struct inspect *in, struct plan_feed **feeds, uint32_t *n, struct err *err)
{
    const struct graph_io *inputs = graph_inputs(in->graph, n);
    int rc = 0;

    *feeds = arena_array(&in->mem, *n, sizeof(**feeds));
    if (*feeds == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < *n && rc == 0; i++)
        rc = make_feed(in, &inputs[i], &(*feeds)[i], err);
    return rc;
}

static int copy_notes(struct inspect *in, const struct plan *p, struct err *err)
{
    uint32_t n;
    const char *const *notes = plan_notes(p, &n);

    for (uint32_t i = 0; i < n; i++) {
        char *note = arena_strdup(&in->mem, notes[i]);

        if (note == NULL || !VEC_PUSH(in->notes, note))
            return err_set(err, ERR_NOMEM, "out of memory");
    }
    return 0;
}

static int inspect_plan(struct inspect *in, enum plan_purpose purpose,
                        const struct plan_feed *feeds, uint32_t n_feeds, struct figures *out,
                        struct err *err)
{
    const struct plan_opts o = { .purpose = purpose,
                                 .batch = in->batch.n,
                                 .precision = in->precision,
                                 .feeds = feeds,
                                 .n_feeds = n_feeds,
                                 .sum_outputs = true };
    struct plan *p;
    int rc = plan_new(in->graph, &o, &p, err);

    if (rc < 0)
        return rc;
    *out = (struct figures){ .is_known = true,
                             .work_bytes = plan_work_bytes(p),
                             .flops = plan_flops(p) / in->batch.n };
    if (in->print_plan)
        plan_print(p, &in->plan);
    rc = inspect_attention_copy(&in->attention, p, &in->mem, err);
    if (rc == 0)
        rc = copy_notes(in, p, err);
    plan_free(p);
    return rc;
}

static int inspect_plans(struct inspect *in, uint32_t batch, const struct plan_feed *feeds,
                         uint32_t n, struct err *err)
{
    int rc;

    in->batch.n = batch;
    in->inference = in->training = (struct figures){ 0 };
    in->attention = (struct inspect_attention){ 0 };
    in->notes.n = 0;
    buf_reset(&in->plan);
    rc = inspect_plan(in, PLAN_EVAL, feeds, n, &in->inference, err);
    if (rc == 0 && graph_trained_floats(in->graph) > 0)
        rc = inspect_plan(in, PLAN_TRAIN, feeds, n, &in->training, err);
    return rc;
}

/* Without --batch the network is planned with one sample. A network may refuse one sample and
 * accept two, because a batch normalization needs two values for each channel. */
static int inspect_batches(struct inspect *in, const struct plan_feed *feeds, uint32_t n,
                           struct err *err)
{
    struct err second = { 0 }, again = { 0 };
    int rc;

    inspect_batch_choose(&in->batch, in->graph);
    rc = inspect_plans(in, in->batch.n, feeds, n, err);
    if (rc == 0 || rc == ERR_NOMEM || in->batch.n != 1 || in->batch.from == INSPECT_BATCH_FLAG)
        return rc;
    /* the batch is not the cause: report the first error */
    if (inspect_plans(in, 2, feeds, n, &second) < 0) {
        (void)inspect_plans(in, 1, feeds, n, &again);
        return rc;
    }
    in->batch.from = INSPECT_BATCH_LEAST;
    in->batch.why = arena_strdup(&in->mem, err->text);
    return in->batch.why != NULL ? 0 : err_set(err, ERR_NOMEM, "out of memory");
}

static int inspect_model(struct inspect *in, struct err *err)
{
    const struct graph_opts o = { .path = in->path,
                                  .batch_norm = in->batch_norm,
                                  .collect_questions = true };
    struct plan_feed *feeds;
    struct err why = { 0 };
    uint32_t n;
    int rc = graph_import(&o, &in->graph, &why);

    if (rc == ERR_UNSUPPORTED) {
        set_problem(in, rc, &why);
        return graph_list_ops(&o, &in->graph, err);
    }
    if (rc < 0) {
        *err = why;
        return rc;
    }
    in->is_imported = true;
    if (graph_question(in->graph) != NULL) {
        struct err question = { 0 };

        (void)err_set(&question, ERR_INPUT, "%s", graph_question(in->graph));
        set_problem(in, ERR_INPUT, &question);
    }
    if (make_feeds(in, &feeds, &n, &why) < 0) {
        set_problem(in, 0, &why); /* the command line is incomplete, the model is valid */
        return 0;
    }
    rc = inspect_batches(in, feeds, n, &why);
    if (rc < 0)
        set_problem(in, rc, &why);
    return 0;
}

/* ---- as text ---- */

static void count(char *out, size_t n, double x)
{
    static const char *const units[] = { " ", " k", " M", " G", " T" };
    size_t i = 0;

    for (; x >= 1000 && i + 1 < COUNT_OF(units); i++)
        x /= 1000;
    snprintf(out, n, i == 0 ? "%.0f%s" : "%.3g%s", x, units[i]);
}

static void print_ios(const char *title, const struct graph_io *io, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        char shape[192] = "of any shape";

        if (io[i].has_shape)
            shape_print(&io[i].shape, shape, sizeof(shape));
        printf("%-11s%s %s %s\n", i == 0 ? title : "", io[i].name,
               io[i].dtype == TENSOR_NONE ? "" : tensor_dtype_name(io[i].dtype), shape);
    }
}

static void print_ops(const struct inspect *in)
{
    uint32_t n, i;
    const struct graph_op *ops = graph_ops(in->graph, &n);
    const char *title = "ops";

    for (i = 0; i < n; i++, title = "")
        printf("%-11s%-28s %5" PRIu32 "%s%s%s\n", title, ops[i].name, ops[i].n,
               ops[i].is_supported ? "" : "  NOT SUPPORTED",
               ops[i].domain[0] != '\0' ? "  of " : "", ops[i].domain);
}

static void print_params(const struct inspect *in)
{
    uint32_t n, i;
    const struct graph_param *p = graph_params(in->graph, &n);
    char numbers[32], bytes[32];
    double trained = 0;

    for (i = 0; i < n; i++)
        trained += p[i].kind == GRAPH_TRAINED ? (double)p[i].elements : 0;
    count(numbers, sizeof(numbers), trained);
    text_bytes(bytes, sizeof(bytes), graph_arena_floats(in->graph) * sizeof(float));
    printf("%-11s%s trained numbers, %s with statistics\n", "parameters", numbers, bytes);
    inspect_tensors_print(in->graph);
}

static void print_figures(const char *title, const struct figures *f, uint32_t batch)
{
    char flops[32], bytes[32];

    if (!f->is_known)
        return;
    count(flops, sizeof(flops), f->flops);
    text_bytes(bytes, sizeof(bytes), f->work_bytes);
    printf("%-11s%sFLOP a sample forward; %s of work memory with %" PRIu32 " samples\n", title,
           flops, bytes, batch);
}

static void print_text(const struct inspect *in)
{
    const char *producer = graph_producer(in->graph);
    uint32_t n, i;

    printf("%-11s%s, opset %" PRIu32 "%s%s\n", "model", in->path, graph_opset(in->graph),
           producer[0] != '\0' ? ", by " : "", producer);
    if (in->is_imported) {
        const struct graph_io *io = graph_inputs(in->graph, &n);

        print_ios("inputs", io, n);
        io = graph_outputs(in->graph, &n);
        print_ios("outputs", io, n);
    }
    print_ops(in);
    if (in->is_imported) {
        const char *const *notes = graph_notes(in->graph, &n);

        print_params(in);
        for (i = 0; i < n; i++)
            printf("%-11s%s\n", "note", notes[i]);
    }
    for (i = 0; i < in->notes.n; i++)
        printf("%-11s%s\n", "note", in->notes.at[i]);
    if (in->precision != PLAN_FLOAT32)
        printf("%-11s%s\n", "precision", plan_precision_name(in->precision));
    if (in->inference.is_known)
        inspect_batch_print(&in->batch);
    print_figures("training", &in->training, in->batch.n);
    print_figures("inference", &in->inference, in->batch.n);
    inspect_attention_print(&in->attention);
    if (in->plan.data != NULL)
        printf("\n%s", in->plan.data);
    if (in->problem != NULL)
        printf("%-11s%s\n", "problem", in->problem);
}

/* ---- as JSON ---- */

static void json_shape(struct buf *out, const struct shape *s)
{
    buf_str(out, "[");
    for (uint32_t k = 0; k < s->rank; k++) {
        if (s->dim[k] < 0)
            buf_printf(out, "%snull", k > 0 ? ", " : "");
        else
            buf_printf(out, "%s%" PRId64, k > 0 ? ", " : "", s->dim[k]);
    }
    buf_str(out, "]");
}

static void json_ios(struct buf *out, const char *key, const struct graph_io *io, uint32_t n)
{
    buf_printf(out, ",\n  \"%s\": [", key);
    for (uint32_t i = 0; i < n; i++) {
        buf_str(out, i > 0 ? ", {\"name\": " : "{\"name\": ");
        buf_json(out, io[i].name);
        if (io[i].dtype != TENSOR_NONE)
            buf_printf(out, ", \"dtype\": \"%s\"", tensor_dtype_name(io[i].dtype));
        if (io[i].has_shape) {
            buf_str(out, ", \"shape\": ");
            json_shape(out, &io[i].shape);
        }
        buf_str(out, "}");
    }
    buf_str(out, "]");
}

static void json_ops(struct buf *out, const struct graph *g)
{
    uint32_t n;
    const struct graph_op *ops = graph_ops(g, &n);

    buf_str(out, ",\n  \"ops\": [");
    for (uint32_t i = 0; i < n; i++) {
        buf_str(out, i > 0 ? ",\n    {\"name\": " : "\n    {\"name\": ");
        buf_json(out, ops[i].name);
        buf_str(out, ", \"domain\": ");
        buf_json(out, ops[i].domain);
        buf_printf(out, ", \"count\": %" PRIu32 ", \"supported\": %s}", ops[i].n,
                   ops[i].is_supported ? "true" : "false");
    }
    buf_str(out, "]");
}

static void json_params(struct buf *out, const struct graph *g)
{
    uint32_t n;
    const struct graph_param *p = graph_params(g, &n);
    uint64_t trained = 0;

    buf_str(out, ",\n  \"parameters\": [");
    for (uint32_t i = 0; i < n; i++) {
        buf_str(out, i > 0 ? ",\n    {\"name\": " : "\n    {\"name\": ");
        buf_json(out, p[i].name);
        buf_str(out, ", \"shape\": ");
        json_shape(out, &p[i].shape);
        buf_printf(out, ", \"kind\": \"%s\"}",
                   p[i].kind == GRAPH_TRAINED ? "trained" : "statistic");
        trained += p[i].kind == GRAPH_TRAINED ? p[i].elements : 0;
    }
    buf_printf(out, "],\n  \"trained_numbers\": %" PRIu64 ",\n  \"parameter_bytes\": %zu", trained,
               graph_arena_floats(g) * sizeof(float));
}

static void json_notes(struct buf *out, const struct inspect *in)
{
    uint32_t n;
    const char *const *notes = graph_notes(in->graph, &n);

    buf_str(out, ",\n  \"notes\": [");
    for (uint32_t i = 0; i < n + in->notes.n; i++) {
        buf_str(out, i > 0 ? ", " : "");
        buf_json(out, i < n ? notes[i] : in->notes.at[i - n]);
    }
    buf_str(out, "]");
}

static void json_figures(struct buf *out, const char *key, const struct figures *f)
{
    if (!f->is_known) {
        buf_printf(out, ",\n  \"%s\": null", key);
        return;
    }
    buf_printf(out,
               ",\n  \"%s\": {\"work_bytes\": %" PRIu64 ", \"forward_flops_per_sample\": ", key,
               f->work_bytes);
    buf_f64(out, f->flops);
    buf_str(out, "}");
}

static void print_json(const struct inspect *in)
{
    struct buf out = { 0 };
    uint32_t n;

    buf_str(&out, "{\n  \"model\": ");
    buf_json(&out, in->path);
    buf_printf(&out, ",\n  \"opset\": %" PRIu32 ",\n  \"producer\": ", graph_opset(in->graph));
    buf_json(&out, graph_producer(in->graph));
    json_ops(&out, in->graph);
    if (in->is_imported) {
        const struct graph_io *io = graph_inputs(in->graph, &n);

        json_ios(&out, "inputs", io, n);
        io = graph_outputs(in->graph, &n);
        json_ios(&out, "outputs", io, n);
        json_params(&out, in->graph);
        inspect_tensors_json(in->graph, &out);
        json_notes(&out, in);
    }
    inspect_batch_json(&in->batch, &out);
    buf_printf(&out, ",\n  \"precision\": \"%s\"", plan_precision_name(in->precision));
    json_figures(&out, "training", &in->training);
    json_figures(&out, "inference", &in->inference);
    inspect_attention_json(&in->attention, &out);
    if (in->plan.data != NULL) {
        buf_str(&out, ",\n  \"plan\": ");
        buf_json(&out, in->plan.data);
    }
    buf_str(&out, ",\n  \"problem\": ");
    if (in->problem != NULL)
        buf_json(&out, in->problem);
    else
        buf_str(&out, "null");
    buf_str(&out, "\n}\n");
    if (!out.failed)
        fputs(out.data, stdout);
    buf_fini(&out);
}

/* ---- */

static bool read_norm(const char *text, enum graph_norm *out)
{
    static const char *const words[] = { [GRAPH_NORM_ASK] = "ask",
                                         [GRAPH_NORM_TRAIN] = "train",
                                         [GRAPH_NORM_FROZEN] = "frozen" };
    unsigned i;

    for (i = 0; text != NULL && i < COUNT_OF(words); i++)
        if (strcmp(text, words[i]) == 0) {
            *out = (enum graph_norm)i;
            return true;
        }
    return text == NULL;
}

static int parse(struct inspect *in, int argc, char **argv, struct err *err)
{
    const struct arg table[] = {
        { "batch", "N", NULL,
          "samples of a lane, for memory and operations (the file's, else 1, or 2 where 1 is refused)",
          &in->batch_text, NULL },
        { "shape", "NAME=D,D,...", NULL, "the shape of an input with dynamic dimensions, batch first",
          &in->shape_text, NULL },
        { "precision", "P", NULL, "as train.precision, as far as CPUs compute it (float32)",
          &in->precision_text, NULL },
        { "batch-norm", "FORM", NULL, "as model.batch_norm: ask, train or frozen (ask)",
          &in->norm_text, NULL },
        { "plan", NULL, NULL, "every call and where its result lies", NULL, &in->print_plan },
        { "ops", NULL, NULL, "the supported ops of ONNX and their opsets; needs no model", NULL,
          &in->print_ops },
        { "json", NULL, NULL, "as one JSON object", NULL, &in->json },
        { "help", NULL, NULL, "this text", NULL, &in->help },
    };
    uint64_t batch = 1;
    int rc = args_parse(table, COUNT_OF(table), &argc, argv, err);

    if (rc == 0 && !in->help && in->print_ops && argc == 1)
        return 0;
    if (rc == 0 && (in->help || argc != 2)) {
        fprintf(in->help ? stdout : stderr,
                "usage: trainerctl inspect MODEL [flags]\n\nPrints an ONNX network as it would be trained: "
                "ops, parameters, memory, operations, and\nwhat is not supported and why.\n\n");
        args_help(table, COUNT_OF(table), in->help ? stdout : stderr);
        fprintf(in->help ? stdout : stderr,
                "\nExit code 0: it can be trained or run; 2: the file is wrong, or the job has to decide "
                "what it means; 3: something in it is not "
                "supported.\n");
        return in->help ? 0 : err_set(err, ERR_INPUT, "expected one model");
    }
    if (rc == 0 && in->batch_text != NULL &&
        (!text_u64(in->batch_text, INSPECT_BATCH_MAX, &batch) || batch == 0))
        rc = err_set(err, ERR_INPUT, "--batch: expected a number from 1, found '%.40s'",
                     in->batch_text);
    if (rc == 0 && in->precision_text != NULL &&
        !plan_precision_parse(in->precision_text, &in->precision))
        rc = err_set(err, ERR_INPUT,
                     "--precision: expected float32, tf32, bfloat16 or float16, found '%.40s'",
                     in->precision_text);
    if (rc == 0 && !read_norm(in->norm_text, &in->batch_norm))
        rc = err_set(err, ERR_INPUT, "--batch-norm: expected ask, train or frozen, found '%.40s'",
                     in->norm_text);
    in->batch = (struct inspect_batch){
        .n = (uint32_t)batch,
        .from = in->batch_text != NULL ? INSPECT_BATCH_FLAG : INSPECT_BATCH_DEFAULT,
    };
    in->path = argv[1];
    return rc == 0 && in->path != NULL ? fs_check_path(in->path, err) : rc;
}

int ctl_inspect(int argc, char **argv)
{
    struct inspect in = { 0 };
    struct err err = { 0 };
    int rc = parse(&in, argc, argv, &err);

    if (rc == 0 && !in.help && in.print_ops) {
        graph_list_supported(&in.plan);
        if (in.plan.failed)
            rc = err_set(&err, ERR_NOMEM, "out of memory");
        else
            fputs(in.plan.data, stdout);
        in.help = true; /* print nothing else */
    }
    if (rc == 0 && !in.help) {
        op_thread_init();
        rc = inspect_model(&in, &err);
    }
    if (rc < 0)
        fprintf(stderr, "trainerctl: %s\n", err.text);
    else if (!in.help) {
        (in.json ? print_json : print_text)(&in);
        rc = in.problem_code;
    }
    graph_free(in.graph);
    buf_fini(&in.plan);
    VEC_FINI(in.notes);
    arena_fini(&in.mem);
    return ctl_exit_code(rc);
}
