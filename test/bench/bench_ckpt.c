/* bench_ckpt.c - compares saving a checkpoint with the minimum: writing the same number of bytes in
 * large chunks and fsync(). Also measures the time that the caller waits (the copy), and the time
 * until the checkpoint is verified, which reads all of it back. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "ckpt/ckpt_priv.h"

enum { MODEL_BYTES = 128 << 20, TENSORS = 160, ROUNDS = 5 };

static void die(const struct err *err)
{
    fprintf(stderr, "bench_ckpt: %s\n", err->text);
    exit(1);
}

static uint64_t bare(const char *folder, const char *state, size_t n)
{
    char *path = fs_join(folder, "bare");
    uint64_t start = clock_ns();
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0666);
    struct err err;

    for (size_t at = 0; at < n; at += CKPT_CHUNK_BYTES)
        if (fs_write_all(fd, state + at, CKPT_CHUNK_BYTES, path, &err) < 0)
            die(&err);
    if (fsync(fd) < 0 || close(fd) < 0)
        perror("fsync");
    start = clock_ns() - start;
    unlink(path);
    free(path);
    return start;
}

static uint64_t save(const char *folder, const struct ckpt_layouts *layouts, const char *state)
{
    const struct ckpt_source source = { .state = state };
    struct ckpt_meta meta = { .step = 1 };
    char *path = fs_join(folder, "saved");
    uint64_t bytes, start = clock_ns();
    struct err err;

    if (ckpt_write_folder(path, layouts, NULL, &meta, &source, &bytes, &err) < 0)
        die(&err);
    start = clock_ns() - start;
    if (fs_remove_tree(path, &err) < 0)
        die(&err);
    free(path);
    return start;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static double median(uint64_t *ns)
{
    qsort(ns, ROUNDS, sizeof(*ns), by_value);
    return (double)ns[ROUNDS / 2];
}

int main(void)
{
    static struct ckpt_tensor model[TENSORS], slots[TENSORS];
    static char names[TENSORS][32];
    const char *tmp = getenv("TMPDIR");
    const size_t n = 2 * (size_t)MODEL_BYTES, each = MODEL_BYTES / TENSORS / 4;
    char *state = malloc(n), *folder = NULL;
    uint64_t bare_ns[ROUNDS], save_ns[ROUNDS], copy_ns[ROUNDS], all_ns[ROUNDS];
    struct ckpt_layouts layouts;
    struct ckpt_writer_opts opts = { .model = model, .n_model = TENSORS, .slots = slots,
                                     .n_slots = TENSORS, .state_bytes = n, .max_to_keep = 1 };
    struct ckpt_writer *w;
    struct err err;

    if (state == NULL ||
        asprintf(&folder, "%s/bench-ckpt-XXXXXX", tmp != NULL ? tmp : "/tmp") < 0 ||
        mkdtemp(folder) == NULL) {
        perror("bench_ckpt");
        return 1;
    }
    for (size_t i = 0; i < n; i++)
        state[i] = (char)(i * 2654435761u >> 13);
    for (size_t i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof(names[i]), "layer.%zu.weight", i);
        model[i] = (struct ckpt_tensor){ names[i], TENSOR_F32, { 1, { (int64_t)each } },
                                         i * each * 4, 0, 0 };
        slots[i] = model[i];
        slots[i].offset += MODEL_BYTES;
    }
    opts.directory = folder;
    if (ckpt_layouts_init(model, TENSORS, slots, TENSORS, n, NULL, 0, &layouts, &err) < 0 ||
        ckpt_writer_open(&opts, &w, &err) < 0)
        die(&err);
    for (int i = 0; i < ROUNDS; i++) {
        struct ckpt_meta meta = { .step = (uint64_t)i };

        bare_ns[i] = bare(folder, state, n);
        save_ns[i] = save(folder, &layouts, state);
        all_ns[i] = clock_ns();
        if (ckpt_write(w, &meta, state, &err) < 0)
            die(&err);
        copy_ns[i] = clock_ns() - all_ns[i];
        if (ckpt_flush(w, &(struct ckpt_flush_limits){ .wait_ms = 600000 }, &err) < 0)
            die(&err);
        all_ns[i] = clock_ns() - all_ns[i];
    }
    ckpt_writer_close(w);
    ckpt_layouts_fini(&layouts);
    if (fs_remove_tree(folder, &err) < 0)
        die(&err);
    printf("checkpoint of %zu MiB: bare write and fsync %.2f GB/s, saved and synced %.2f GB/s "
           "(%.0f %%), verified from the disk too %.2f GB/s, the caller waited %.1f ms\n",
           n >> 20, (double)n / median(bare_ns), (double)n / median(save_ns),
           100 * median(bare_ns) / median(save_ns), (double)n / median(all_ns),
           median(copy_ns) / 1e6);
    free(folder);
    free(state);
    return 0;
}
