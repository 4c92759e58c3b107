/* layout.c - the files of a checkpoint: their headers, and the ranges of the state with their data. The files
 * of shards and their index (shard_files.h) exist if a tensor has rows of a table. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "ckpt/ckpt_priv.h"
#include "ckpt/shard_files.h"

static size_t bytes_of(const struct ckpt_tensor *t)
{
    struct tensor x = { .dtype = t->dtype, .shape = t->shape };

    return tensor_bytes(&x);
}

static int check_tensor(const struct ckpt_tensor *t, size_t state_bytes, struct err *err)
{
    size_t bytes = bytes_of(t);

    if (safetensors_dtype(t->dtype) == NULL)
        return err_set(err, ERR_UNSUPPORTED, "tensor '%s': safetensors has no type for %s", t->name,
                       tensor_dtype_name(t->dtype));
    if (t->name[0] == '\0' || strcmp(t->name, "__metadata__") == 0 ||
        !text_is_utf8(t->name, strlen(t->name)))
        return err_set(err, ERR_INPUT, "'%s' is not a valid tensor name", t->name);
    CHECK(t->offset == CKPT_ELSEWHERE ? t->table > 0
                                      : bytes <= state_bytes && t->offset <= state_bytes - bytes);
    return 0;
}

static bool add_piece(struct ckpt_layout *l, size_t offset, size_t bytes)
{
    struct ckpt_piece *last = l->n_pieces > 0 ? &l->pieces[l->n_pieces - 1] : NULL;

    if (last != NULL && last->offset + last->bytes == offset) {
        last->bytes += bytes;
        return true;
    }
    if (bytes == 0)
        return true;
    if (!vec_grow((void **)&l->pieces, &l->room, l->n_pieces + 1, sizeof(*l->pieces)))
        return false;
    l->pieces[l->n_pieces++] = (struct ckpt_piece){ offset, bytes };
    return true;
}

static int no_memory(const struct ckpt_layout *l, struct err *err)
{
    return err_set(err, ERR_NOMEM, "%s: out of memory", l->name);
}

/* ---- a file of whole tensors ---- */

/* Places the largest element types first, so that each tensor is aligned to its element size. */
static int place_tensors(struct ckpt_layout *l, const struct ckpt_tensor *tensors, uint32_t n,
                         struct safetensors_entry *entries, size_t *n_placed, struct err *err)
{
    uint64_t at = 0;

    *n_placed = 0;
    for (size_t size = 8; size > 0; size /= 2)
        for (uint32_t i = 0; i < n; i++) {
            const struct ckpt_tensor *t = &tensors[i];

            if (tensor_dtype_bytes(t->dtype) != size || t->table > 0)
                continue;
            entries[(*n_placed)++] =
                (struct safetensors_entry){ t->name, t->dtype, t->shape, at, at + bytes_of(t) };
            at += bytes_of(t);
            if (!add_piece(l, t->offset, bytes_of(t)))
                return no_memory(l, err);
        }
    l->bytes = at;
    return 0;
}

/* Appends the header to a layout whose `bytes` are those of the data. */
static int add_header(struct ckpt_layout *l, const struct safetensors_entry *entries, size_t n,
                      const struct safetensors_text *metadata, size_t n_metadata, struct err *err)
{
    struct buf header = { 0 };
    int rc = safetensors_header(entries, n, metadata, n_metadata, &header, err);

    if (rc == 0) {
        l->header_bytes = header.len;
        l->bytes += header.len;
        l->header = buf_detach(&header);
    }
    buf_fini(&header);
    return rc;
}

int ckpt_layout_init(const char *name, const struct ckpt_tensor *tensors, uint32_t n,
                     size_t state_bytes, struct ckpt_layout *out, struct err *err)
{
    struct safetensors_entry *entries = calloc(n > 0 ? n : 1, sizeof(*entries));
    size_t n_entries = 0;
    int rc = 0;

    *out = (struct ckpt_layout){ .n_pieces = 0 };
    snprintf(out->name, sizeof(out->name), "%s", name);
    if (entries == NULL)
        rc = no_memory(out, err);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = check_tensor(&tensors[i], state_bytes, err);
    if (rc == 0)
        rc = place_tensors(out, tensors, n, entries, &n_entries, err);
    if (rc == 0)
        rc = add_header(out, entries, n_entries, NULL, 0, err);
    free(entries);
    if (rc < 0)
        ckpt_layout_fini(out);
    return rc;
}

void ckpt_layout_fini(struct ckpt_layout *l)
{
    free(l->header);
    free(l->pieces);
    *l = (struct ckpt_layout){ 0 };
}

/* ---- a file of shards ---- */

bool ckpt_is_shard_file(const char *name)
{
    char shard[CKPT_FILE_NAME_BYTES];

    for (int kind = 0; kind < CKPT_SHARD_KINDS; kind++)
        for (uint32_t f = 0; f < CKPT_SHARD_FILES; f++) {
            ckpt_shard_file_name(kind, f, shard);
            if (strcmp(name, shard) == 0)
                return true;
        }
    return false;
}

char *ckpt_shard_tensor_name(const char *name, uint32_t file)
{
    char *out;

    return asprintf(&out, "%s" CKPT_ROWS_INFIX "%05" PRIu32 "-of-%05d", name, file,
                    CKPT_SHARD_FILES) < 0
               ? NULL
               : out;
}

/* Lists the ranges of the state with the rows of the table that are in the file. */
static int add_rows(struct ckpt_layout *l, const struct ckpt_tensor *t, uint32_t file,
                    size_t row_bytes, struct err *err)
{
    uint32_t first_shard = shard_first(t->table - 1);
    uint64_t n;

    if (t->offset == CKPT_ELSEWHERE)
        return 0;
    for (uint64_t row = 0; ckpt_shard_next((uint64_t)t->shape.dim[0], first_shard, file, &row, &n);
         row += n)
        if (!add_piece(l, t->offset + row * row_bytes, n * row_bytes))
            return no_memory(l, err);
    return 0;
}

/* Returns how many rows of the table are in the file. */
static uint64_t rows_in_file(const struct ckpt_tensor *t, uint32_t file,
                             const struct ckpt_sizes *sizes, uint32_t n_sizes)
{
    if (t->group == 0)
        return ckpt_shard_rows_before(shard_first(t->table - 1), file, (uint64_t)t->shape.dim[0]);
    return t->table <= n_sizes ? ckpt_sizes_in_file(&sizes[t->table - 1], t->group - 1, file) : 0;
}

static size_t row_bytes_of(const struct ckpt_tensor *t)
{
    struct tensor row = { .dtype = t->dtype, .shape = t->shape };

    row.shape.dim[0] = 1;
    return tensor_bytes(&row);
}

static int place_rows(struct ckpt_layout *l, const struct ckpt_tensor *t, uint32_t file, uint64_t n,
                      struct safetensors_entry *out, struct err *err)
{
    size_t row_bytes = row_bytes_of(t);

    CHECK(t->shape.rank > 0 &&
          (t->dtype == TENSOR_F32 || (t->group > 0 && t->dtype == TENSOR_I64)));
    if (row_bytes > 0 && n > (UINT64_MAX / 2 - l->bytes) / row_bytes)
        return err_set(err, ERR_UNSUPPORTED, "tensor '%s': %" PRIu64 " rows exceed a file", t->name,
                       n);
    *out = (struct safetensors_entry){ .name = ckpt_shard_tensor_name(t->name, file),
                                       .dtype = t->dtype,
                                       .shape = t->shape,
                                       .begin = l->bytes,
                                       .end = l->bytes + n * row_bytes };
    out->shape.dim[0] = (int64_t)n;
    l->bytes = out->end;
    return out->name == NULL ? no_memory(l, err) : add_rows(l, t, file, row_bytes, err);
}

static bool has_ids(const struct ckpt_tensor *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (t[i].group > 0)
            return true;
    return false;
}

static int shard_file(enum ckpt_shard_kind kind, uint32_t file, const struct ckpt_tensor *tensors,
                      uint32_t n, const struct ckpt_sizes *sizes, uint32_t n_sizes,
                      struct ckpt_layout *out, struct err *err)
{
    const struct safetensors_text metadata[] = { { "format", "pt" },
                                                 { "rows", CKPT_ROWS_RULE },
                                                 { "ids", CKPT_IDS_RULE } };
    struct safetensors_entry *entries = calloc(n > 0 ? n : 1, sizeof(*entries));
    size_t n_entries = 0;
    int rc = 0;

    *out = (struct ckpt_layout){ .is_elsewhere = false };
    ckpt_shard_file_name(kind, file, out->name);
    if (entries == NULL)
        rc = no_memory(out, err);
    for (int ints = 1; ints >= 0; ints--)
        for (uint32_t i = 0; rc == 0 && i < n; i++)
            if (tensors[i].table > 0 && (tensors[i].dtype == TENSOR_I64) == ints) {
                out->is_elsewhere = tensors[i].offset == CKPT_ELSEWHERE;
                rc = place_rows(out, &tensors[i], file,
                                rows_in_file(&tensors[i], file, sizes, n_sizes),
                                &entries[n_entries++], err);
            }
    if (rc == 0)
        rc = add_header(out, entries, n_entries, metadata,
                        COUNT_OF(metadata) - !has_ids(tensors, n), err);
    for (size_t i = 0; i < n_entries; i++)
        free((char *)(uintptr_t)entries[i].name);
    free(entries);
    if (rc < 0)
        ckpt_layout_fini(out);
    return rc;
}

/* ---- the index ---- */

static void print_weight(struct buf *out, const char *tensor, const char *file, bool *is_first)
{
    buf_str(out, *is_first ? "\n    " : ",\n    ");
    buf_json(out, tensor);
    buf_str(out, ": ");
    buf_json(out, file);
    *is_first = false;
}

/* Writes the names of all tensors of the model files, in the format of Hugging Face. */
static int print_index(const struct ckpt_tensor *model, uint32_t n, const struct ckpt_sizes *sizes,
                       uint32_t n_sizes, struct buf *out)
{
    char file[CKPT_FILE_NAME_BYTES];
    uint64_t bytes = 0;
    bool is_first = true;

    for (uint32_t i = 0; i < n; i++) {
        bytes += model[i].group == 0 ? bytes_of(&model[i]) : 0;
        for (uint32_t f = 0; model[i].group > 0 && f < CKPT_SHARD_FILES; f++)
            bytes += rows_in_file(&model[i], f, sizes, n_sizes) * row_bytes_of(&model[i]);
    }
    buf_printf(out, "{\n  \"metadata\": {\"total_size\": %" PRIu64 "},\n  \"weight_map\": {",
               bytes);
    for (uint32_t i = 0; i < n; i++)
        if (model[i].table == 0)
            print_weight(out, model[i].name, CKPT_DENSE_MODEL_FILE, &is_first);
    for (uint32_t f = 0; f < CKPT_SHARD_FILES; f++) {
        ckpt_shard_file_name(CKPT_SHARD_MODEL, f, file);
        for (uint32_t i = 0; i < n; i++) {
            char *name = model[i].table > 0 ? ckpt_shard_tensor_name(model[i].name, f) : NULL;

            if (name != NULL)
                print_weight(out, name, file, &is_first);
            out->failed = out->failed || (model[i].table > 0 && name == NULL);
            free(name);
        }
    }
    buf_str(out, "\n  }\n}\n");
    return out->failed ? ERR_NOMEM : 0;
}

static int index_file(const struct ckpt_tensor *model, uint32_t n, const struct ckpt_sizes *sizes,
                      uint32_t n_sizes, struct ckpt_layout *out, struct err *err)
{
    struct buf text = { 0 };
    int rc = 0;

    *out = (struct ckpt_layout){ .n_pieces = 0 };
    snprintf(out->name, sizeof(out->name), "%s", CKPT_INDEX_FILE);
    if (print_index(model, n, sizes, n_sizes, &text) < 0) {
        rc = no_memory(out, err);
    } else {
        out->header_bytes = text.len;
        out->bytes = text.len;
        out->header = buf_detach(&text);
    }
    buf_fini(&text);
    return rc;
}

/* ---- all files ---- */

static bool has_rows(const struct ckpt_tensor *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (t[i].table > 0)
            return true;
    return false;
}

static int add_shard_files(enum ckpt_shard_kind kind, const struct ckpt_tensor *t, uint32_t n,
                           const struct ckpt_sizes *sizes, uint32_t n_sizes,
                           struct ckpt_layouts *out, struct err *err)
{
    int rc = 0;

    for (uint32_t f = 0; rc == 0 && has_rows(t, n) && f < CKPT_SHARD_FILES; f++) {
        rc = shard_file(kind, f, t, n, sizes, n_sizes, &out->at[out->n], err);
        out->n += rc == 0;
    }
    return rc;
}

int ckpt_layouts_init(const struct ckpt_tensor *model, uint32_t n_model,
                      const struct ckpt_tensor *slots, uint32_t n_slots, size_t state_bytes,
                      const struct ckpt_sizes *sizes, uint32_t n_sizes, struct ckpt_layouts *out,
                      struct err *err)
{
    int rc;

    *out = (struct ckpt_layouts){ .has_shards = has_rows(model, n_model),
                                  .has_ids = has_ids(model, n_model) };
    rc = ckpt_layout_init(out->has_shards ? CKPT_DENSE_MODEL_FILE : CKPT_MODEL_FILE, model, n_model,
                          state_bytes, &out->at[0], err);
    out->n += rc == 0;
    if (rc == 0)
        rc = ckpt_layout_init(out->has_shards ? CKPT_DENSE_OPTIMIZER_FILE : CKPT_OPTIMIZER_FILE,
                              slots, n_slots, state_bytes, &out->at[1], err);
    out->n += rc == 0;
    if (rc == 0 && out->has_shards) {
        rc = index_file(model, n_model, sizes, n_sizes, &out->at[2], err);
        out->n += rc == 0;
    }
    if (rc == 0)
        rc = add_shard_files(CKPT_SHARD_MODEL, model, n_model, sizes, n_sizes, out, err);
    if (rc == 0)
        rc = add_shard_files(CKPT_SHARD_OPTIMIZER, slots, n_slots, sizes, n_sizes, out, err);
    if (rc < 0)
        ckpt_layouts_fini(out);
    return rc;
}

void ckpt_layouts_fini(struct ckpt_layouts *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        ckpt_layout_fini(&l->at[i]);
    l->n = 0;
}
