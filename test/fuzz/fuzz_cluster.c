/* fuzz_cluster.c - any text as TF_CONFIG, as the related variables and as Slurm's lists: nothing
 * crashes, a refusal has a text, strict mode accepts no more than tf mode, and a canonical form is
 * the specification of the same cluster. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/json.h"
#include "conf/cluster.h"
#include "conf/cluster_print.h"
#include "conf/cluster_slurm.h"
#include "fuzz/driver.h"

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED(
        "{\"cluster\":{\"worker\":[\"a:1\",\"b:2\"]},\"task\":{\"type\":\"worker\",\"index\":0}}"),
    FUZZ_SEED(
        "{\"cluster\":{\"chief\":[\"c.x.:1\"],\"worker\":{\"0\":\"[::1]:2\",\"1\":\"10.0.0.1:3\"},"
        "\"ps\":[],\"evaluator\":[\"e:1\"]},\"task\":{\"type\":\"chief\",\"index\":\"0\"},"
        "\"rpc_layer\":\"grpc\",\"environment\":\"cloud\"}"),
    FUZZ_SEED("{\"cluster\":{\"worker\":{\"3\":\"w:1\"},\"ps\":[\"p:1\",\"q:1\"]},"
              "\"task\":{\"type\":\"worker\",\"index\":3}}"),
    FUZZ_SEED(
        "{\"cluster\":{\"ps\":[\"p:1\"],\"worker\":{}},\"task\":{\"type\":\"ps\",\"index\":2}}"),
    FUZZ_SEED("{\"cluster\":{\"worker\":[\":1\",\"localhost:2\"]},"
              "\"task\":{\"type\":\"evaluator\",\"index\":12}}"),
    FUZZ_SEED("{\"cluster\":{\"chief\":[],\"worker\":[\"a:1\"]}}"),
    FUZZ_SEED("[\"cluster\"]"),
    FUZZ_SEED("n[0001-0003],m5,r[1-2]o[009-011,13]"),
    FUZZ_SEED("3(x2),2,11(x4)"),
    FUZZ_SEED("worker:1"),
    FUZZ_SEED("trainer-1.svc"),
    FUZZ_SEED(" +1_0\xe2\x80\x83"),
};
const size_t n_fuzz_seeds = sizeof(fuzz_seeds) / sizeof(fuzz_seeds[0]);

/* The environment: `text` is the value of every variable in `names`. */
struct world {
    const char *text;
    const char *names;
};

static const char *world_env(void *arg, const char *name)
{
    const struct world *w = arg;

    return strstr(w->names, name) != NULL ? w->text : NULL;
}

static struct cluster *resolve(struct cluster_opts opts, const char *names, const char *text)
{
    struct world w = { .text = text, .names = names };
    struct cluster *c = NULL;
    struct err err = { 0 };
    struct buf print = { 0 };
    struct json *doc = NULL;
    int rc;

    opts.env = world_env;
    opts.env_arg = &w;
    rc = cluster_resolve(&opts, &c, &err);
    CHECK(rc == 0 || rc == ERR_INPUT);
    CHECK((rc == 0) == (c != NULL));
    if (rc < 0) {
        CHECK(err.code == rc && strlen(err.text) > 8);
        return NULL;
    }
    CHECK(c->self >= c->tasks && c->self < c->tasks + c->n_tasks);
    for (uint32_t i = 0; i < c->world; i++)
        CHECK(c->ranks[i]->rank == i);
    cluster_print(c, &print);
    CHECK(!print.failed && json_parse("print", print.data, print.len, 0, &doc, NULL) == 0);
    json_free(doc);
    buf_fini(&print);
    return c;
}

/* Checks that the canonical form, read by the same task, is the same cluster. */
static void check_canonical(const struct cluster *c)
{
    struct cluster_opts opts = { .profile = CLUSTER_TF };
    struct buf text = { 0 };
    struct cluster *again;

    if (c->is_local || c->is_dynamic || c->self->type == CLUSTER_EVALUATOR)
        return;
    buf_printf(&text, "{\"cluster\":%s,\"task\":{\"type\":\"%s\",\"index\":%u}}", c->canonical,
               cluster_type_name(c->self->type), (unsigned)c->self->index);
    again = resolve(opts, "TF_CONFIG", text.data);
    CHECK(again != NULL && strcmp(again->hash, c->hash) == 0);
    CHECK(again->self->rank == c->self->rank && again->world == c->world);
    cluster_free(again);
    buf_fini(&text);
}

static void as_variable(const char *text)
{
    struct cluster_opts opts = { .profile = CLUSTER_STRICT };
    struct cluster *strict = resolve(opts, "TF_CONFIG", text);
    struct cluster *tf;

    opts.profile = CLUSTER_TF;
    tf = resolve(opts, "TF_CONFIG", text);
    if (strict != NULL && text[0] != '\0' && strncmp(text, "\xef\xbb\xbf", 3) != 0) {
        CHECK(tf != NULL && strcmp(strict->hash, tf->hash) == 0);
        CHECK(strict->self->type == tf->self->type && strict->self->index == tf->self->index);
        CHECK(strict->self->rank == tf->self->rank && strict->world == tf->world);
    }
    if (strict != NULL)
        check_canonical(strict);
    if (tf != NULL)
        check_canonical(tf);
    cluster_free(strict);
    cluster_free(tf);
}

static void as_slurm(const char *text)
{
    struct cluster_opts opts = { .cluster_file = "slurm", .task = "worker:0" };
    struct arena mem = { 0 };
    const char **names;
    uint32_t *counts, n;

    if (cluster_slurm_nodes(text, &mem, &names, &n, NULL) == 0) {
        CHECK(n >= 1 && n <= 65536);
        for (uint32_t i = 0; i < n; i++)
            CHECK(names[i][0] != '\0');
    }
    arena_fini(&mem);
    if (cluster_slurm_counts(text, &mem, &counts, &n, NULL) == 0) {
        CHECK(n >= 1 && n <= 65536);
        for (uint32_t i = 0; i < n; i++)
            CHECK(counts[i] >= 1);
    }
    arena_fini(&mem);
    cluster_free(resolve(opts, "SLURM_STEP_NODELIST SLURM_STEP_TASKS_PER_NODE", text));
}

static const char *fixed_env(void *arg, const char *name)
{
    if (strcmp(name, "TF_CONFIG") == 0)
        return "{\"cluster\":{\"worker\":[\"a:1\",\"b:2\"],\"x\":[]}}";
    return strcmp(name, "PMI_RANK") == 0 ? arg : NULL;
}

static void as_option(const char *text)
{
    struct cluster_opts variants[] = {
        { .task = text },
        { .hostname = text, .ignore_jobs = "x" },
        { .ignore_jobs = text, .task = "worker:1" },
        { .env_arg = (void *)(uintptr_t)text, .ignore_jobs = "x" },
        { .env_arg = (void *)(uintptr_t)text, .hosts = text, .task = "worker:0" },
    };

    for (size_t i = 0; i < COUNT_OF(variants); i++) {
        struct cluster *c = NULL;

        variants[i].env = fixed_env;
        CHECK((cluster_resolve(&variants[i], &c, NULL) == 0) == (c != NULL));
        cluster_free(c);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);

    CHECK(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    as_variable(text);
    as_slurm(text);
    as_option(text);
    free(text);
    return 0;
}
