/* bench_external - measures time and memory to load a model with more than 2 GB of external data.
 *
 *   bench_external [--gib N] [--folder PATH]
 *
 * Writes a chain of matrix products with N GiB of weights (default 3) in one file below PATH
 * (default /tmp), imports it, and fills an arena of parameters from it, as at the start of
 * training. Prints the times, the anonymous memory of the process after each, and the peak of the
 * total memory including mapped files. Exit code 1: the peak is more than 64 MiB above the arena,
 * so weights were copied twice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "graph/graph.h"
#include "harness/model.h"

enum { SIDE = 8192, PER_GIB = 4, GIB_MAX = 64, SLACK_MIB = 64 };

/* Returns a field of /proc/self/status in MiB. */
static double memory(const char *field)
{
    char line[256];
    double mib = -1;
    size_t n = strlen(field);
    FILE *f = fopen("/proc/self/status", "r");

    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, field, n) == 0 && line[n] == ':')
            mib = (double)strtoull(line + n + 1, NULL, 10) / 1024;
    if (f != NULL)
        fclose(f);
    return mib;
}

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int fail(const char *what)
{
    perror(what);
    return 2;
}

static void add_entry(Onnx__TensorProto *t, size_t i, const char *key, char *value)
{
    Onnx__StringStringEntryProto *e = calloc(1, sizeof(*e)); /* never freed */

    onnx__string_string_entry_proto__init(e);
    e->key = (char *)(uintptr_t)key;
    e->value = value;
    t->external_data[i] = e;
}

static int write_model(const char *path, unsigned n)
{
    struct model *m = model_new(17);
    char name[32], in[80], out[32];
    const uint8_t *bytes;
    size_t size;

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)SIDE));
    for (unsigned i = 0; i < n; i++) {
        Onnx__TensorProto *t;
        char *offset = NULL;

        snprintf(name, sizeof(name), "layers.%u.weight", i);
        model_weights(m, name, shape_of(2, (int64_t)1, (int64_t)1), 1);
        t = model_proto(m)->graph->initializer[i];
        t->dims[0] = t->dims[1] = SIDE;
        t->has_raw_data = 0;
        t->has_data_location = 1;
        t->data_location = 1;
        t->n_external_data = 2;
        t->external_data = calloc(2, sizeof(*t->external_data));
        if (asprintf(&offset, "%llu", (unsigned long long)i * SIDE * SIDE * 4) < 0)
            return fail("offset");
        add_entry(t, 0, "location", (char *)(uintptr_t) "weights.data");
        add_entry(t, 1, "offset", offset);
        snprintf(in, sizeof(in), "%s%u %s", i > 0 ? "h" : "x", i, name);
        if (i == 0)
            snprintf(in, sizeof(in), "x %s", name);
        snprintf(out, sizeof(out), i + 1 < n ? "h%u" : "logits", i + 1);
        model_node(m, "MatMul", in, out);
    }
    model_output(m, "logits");
    bytes = model_bytes(m, &size);
    return fs_replace(path, bytes, size, NULL) == 0 ? 0 : fail(path); /* m is never freed */
}

static int write_weights(const char *path, unsigned n)
{
    float *row = malloc(SIDE * sizeof(*row));
    FILE *f = fopen(path, "wb");
    int rc = 0;

    if (f == NULL || row == NULL)
        return fail(path);
    for (size_t i = 0; i < (size_t)n * SIDE && rc == 0; i++) {
        for (size_t k = 0; k < SIDE; k++)
            row[k] = (float)i + (float)k / SIDE;
        rc = fwrite(row, SIDE * sizeof(*row), 1, f) == 1 ? 0 : fail(path);
    }
    free(row);
    return fclose(f) == 0 ? rc : fail(path);
}

static int measure(const char *model, unsigned n)
{
    const double arena_mib = (double)n * SIDE * SIDE * 4 / (1 << 20);
    const struct graph_opts opts = { .path = model, .max_bytes = (uint64_t)GIB_MAX << 31 };
    uint64_t begin = clock_ns(), imported, filled;
    struct graph *g;
    struct err err;
    float *arena;
    double own, peak, cpu;

    if (graph_import(&opts, &g, &err) < 0) {
        fprintf(stderr, "bench_external: %s\n", err.text);
        return 2;
    }
    imported = clock_ns();
    own = memory("RssAnon");
    cpu = cpu_seconds();
    arena = malloc(graph_arena_floats(g) * sizeof(*arena));
    if (arena == NULL || graph_fill_initial(g, arena, &err) < 0) {
        fprintf(stderr, "bench_external: %s\n", arena != NULL ? err.text : "out of memory");
        return 2;
    }
    graph_release_initial(g);
    filled = clock_ns();
    cpu = cpu_seconds() - cpu;
    peak = memory("VmHWM");
    printf("weights %.0f MiB: import %.1f ms, own memory then %.0f MiB; fill %.2f s (%.2f s of this "
           "processor, %.2f GB/s), own "
           "memory then %.0f MiB; peak %.0f MiB, which is %.0f MiB above the arena\n",
           arena_mib, (double)(imported - begin) / 1e6, own, (double)(filled - imported) / 1e9, cpu,
           arena_mib * 1048576 / 1e9 / cpu, memory("RssAnon"), peak,
           peak - arena_mib);
    free(arena);
    graph_free(g);
    return peak - arena_mib <= SLACK_MIB ? 0 : 1;
}

int main(int argc, char **argv)
{
    const char *parent = "/tmp";
    unsigned gib = 3;
    char *folder, *model, *data;
    int rc = 0;

    for (int i = 1; i < argc && rc == 0; i += 2)
        if (i + 1 < argc && strcmp(argv[i], "--gib") == 0)
            gib = (unsigned)strtoul(argv[i + 1], NULL, 10);
        else if (i + 1 < argc && strcmp(argv[i], "--folder") == 0)
            parent = argv[i + 1];
        else
            rc = 2;
    if (rc != 0 || gib < 1 || gib > GIB_MAX) {
        fprintf(stderr, "usage: bench_external [--gib 1 to %d] [--folder PATH]\n", GIB_MAX);
        return 2;
    }
    if (asprintf(&folder, "%s/bench_external-XXXXXX", parent) < 0 || mkdtemp(folder) == NULL)
        return fail(parent);
    model = fs_join(folder, "model.onnx");
    data = fs_join(folder, "weights.data");
    rc = write_model(model, gib * PER_GIB);
    if (rc == 0)
        rc = write_weights(data, gib * PER_GIB);
    if (rc == 0)
        rc = measure(model, gib * PER_GIB);
    (void)fs_remove_tree(folder, NULL); /* after a failure, bench_external-* remains */
    return rc;
}
