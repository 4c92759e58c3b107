/* manifest.c - prints and parses a manifest with one table, which has a row per member of the
 * metadata. Unknown members, which a later version may have written, are skipped. The last member
 * is the checksum of the preceding bytes, so that damage to the manifest is detected. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/text.h"
#include "ckpt/ckpt_priv.h"

#define SUM_HEAD "  \"checksum\": \""
#define SUM_TAIL "\"\n}\n"

enum {
    SUM_BYTES = sizeof(SUM_HEAD) - 1 + CKPT_HASH_BYTES - 1 + sizeof(SUM_TAIL) - 1,
};

enum type { U64, U32, F64, TEXT, FLAG };

static const struct member {
    const char *name;
    enum type type;
    size_t at;        /* offset in struct ckpt_meta */
    size_t room;      /* TEXT: bytes with NUL */
    bool is_optional; /* a zero value is not printed, and an absent member is zero */
} members[] = {
#define NUMBER(name_, type_) { #name_, type_, offsetof(struct ckpt_meta, name_), 0, false }
#define OPTION(name_, type_) { #name_, type_, offsetof(struct ckpt_meta, name_), 0, true }
#define STRING(name_)                                                                              \
    { #name_, TEXT, offsetof(struct ckpt_meta, name_), sizeof(((struct ckpt_meta *)0)->name_), false }
#define OPTIONAL_STRING(name_)                                                                     \
    { #name_, TEXT, offsetof(struct ckpt_meta, name_), sizeof(((struct ckpt_meta *)0)->name_), true }
    NUMBER(step, U64),
    NUMBER(epoch, U64),
    NUMBER(position, U64),
    NUMBER(seed, U64),
    NUMBER(lanes, U32),
    NUMBER(global_batch_size, U32),
    STRING(job_digest),
    OPTIONAL_STRING(model_digest),
    STRING(data_digest),
    STRING(name),
    NUMBER(complete, FLAG),
    OPTION(plateau_step, U64),
    OPTION(plateau_has_best, FLAG),
    OPTION(plateau_best, F64),
    OPTION(plateau_waited, U32),
    OPTION(plateau_reductions, U32),
    OPTION(evaluated_step, U64),
    OPTION(loss_scale, F64),
    OPTION(loss_scale_good_steps, U32),
    OPTION(phase, U32),
    OPTION(groups, U32),
    OPTION(outer_step, U64),
    OPTION(has_outer_momentum, FLAG),
    OPTION(staleness, U32),
    OPTION(residual_groups, U32),
    OPTIONAL_STRING(compression),
    OPTIONAL_STRING(data_content),
};

static bool is_zero(const struct ckpt_meta *meta, const struct member *m)
{
    static const struct ckpt_meta zero;
    static const size_t bytes[] = { [U64] = 8, [U32] = 4, [F64] = 8, [TEXT] = 1,
                                    [FLAG] = sizeof(bool) };

    return memcmp((const char *)meta + m->at, (const char *)&zero + m->at, bytes[m->type]) == 0;
}

static void print_member(const struct ckpt_meta *meta, const struct member *m, struct buf *out)
{
    const char *at = (const char *)meta + m->at;
    uint64_t u64;
    uint32_t u32;
    double f64;
    bool flag;

    if (m->is_optional && is_zero(meta, m))
        return;
    buf_printf(out, "  \"%s\": ", m->name);
    switch (m->type) {
    case U64:
        memcpy(&u64, at, sizeof(u64));
        buf_printf(out, "%" PRIu64, u64);
        break;
    case U32:
        memcpy(&u32, at, sizeof(u32));
        buf_printf(out, "%" PRIu32, u32);
        break;
    case F64:
        memcpy(&f64, at, sizeof(f64));
        buf_f64(out, f64);
        break;
    case TEXT:
        buf_json(out, at);
        break;
    case FLAG:
        memcpy(&flag, at, sizeof(flag));
        buf_str(out, flag ? "true" : "false");
        break;
    }
    buf_str(out, ",\n");
}

static void hash_text(const char *text, size_t n, char out[CKPT_HASH_BYTES])
{
    ckpt_hash_print(XXH3_128bits(text, n), out);
}

void ckpt_checksum_print(struct buf *out)
{
    char hash[CKPT_HASH_BYTES];

    if (out->failed)
        return;
    hash_text(out->data, out->len, hash);
    buf_printf(out, SUM_HEAD "%s" SUM_TAIL, hash);
}

void ckpt_manifest_print(const struct ckpt_manifest *m, uint64_t wall_us, struct buf *out)
{
    time_t seconds = (time_t)(wall_us / 1000000);
    char when[32];
    struct tm tm;

    gmtime_r(&seconds, &tm);
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &tm);
    buf_printf(out, "{\n  \"format\": %d,\n",
               !m->has_shards ? CKPT_FORMAT
               : m->has_ids   ? CKPT_DYNAMIC_FORMAT
                              : CKPT_SHARDED_FORMAT);
    for (size_t i = 0; i < COUNT_OF(members); i++)
        print_member(&m->meta, &members[i], out);
    if (m->has_shards)
        buf_printf(out, "  \"shards\": {\"files\": %d, \"rows\": \"" CKPT_ROWS_RULE "\"%s},\n",
                   CKPT_SHARD_FILES, m->has_ids ? ", \"ids\": \"" CKPT_IDS_RULE "\"" : "");
    buf_printf(out, "  \"written_at\": \"%s\",\n  \"files\": {", when);
    for (uint32_t i = 0; i < m->n_files; i++) {
        buf_str(out, i > 0 ? ",\n    " : "\n    ");
        buf_json(out, m->files[i].name);
        buf_printf(out, ": {\"bytes\": %" PRIu64 ", \"xxh3_128\": \"%s\"}", m->files[i].bytes,
                   m->files[i].hash);
    }
    buf_str(out, "\n  },\n");
    ckpt_checksum_print(out);
}

static int missing(const struct json *doc, const cJSON *object, const char *name, struct err *err)
{
    json_error(doc, object, err, "\"%s\" is missing", name);
    return ckpt_corrupt(err);
}

static int read_member(const struct json *doc, const cJSON *value, const struct member *m,
                       struct ckpt_meta *meta, struct err *err)
{
    char *at = (char *)meta + m->at;
    uint64_t u64 = 0;
    uint32_t u32;
    bool flag;

    switch (m->type) {
    case U64:
        if (ckpt_read_integer(doc, value, UINT64_MAX, &u64, err) < 0)
            return ERR_CORRUPT;
        memcpy(at, &u64, sizeof(u64));
        return 0;
    case U32:
        if (ckpt_read_integer(doc, value, UINT32_MAX, &u64, err) < 0)
            return ERR_CORRUPT;
        u32 = (uint32_t)u64;
        memcpy(at, &u32, sizeof(u32));
        return 0;
    case F64:
        if (!cJSON_IsNumber(value))
            return ckpt_unexpected(doc, value, "a number", err);
        memcpy(at, &value->valuedouble, sizeof(double));
        return 0;
    case TEXT:
        if (!cJSON_IsString(value) || strlen(value->valuestring) >= m->room)
            return ckpt_unexpected(doc, value, "a text within its length limit", err);
        strcpy(at, value->valuestring);
        return 0;
    case FLAG:
        if (!cJSON_IsBool(value))
            return ckpt_unexpected(doc, value, "true or false", err);
        flag = cJSON_IsTrue(value);
        memcpy(at, &flag, sizeof(flag));
        return 0;
    }
    return ckpt_unexpected(doc, value, "nothing", err); /* no such type */
}

/* Accepts plain names only: no path, no hidden file. */
static bool is_file_name(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL &&
           strlen(name) < CKPT_FILE_NAME_BYTES;
}

static bool is_hash(const cJSON *value)
{
    return cJSON_IsString(value) && strlen(value->valuestring) == CKPT_HASH_BYTES - 1 &&
           strspn(value->valuestring, "0123456789abcdef") == CKPT_HASH_BYTES - 1;
}

static int read_file(const struct json *doc, const cJSON *value, struct ckpt_manifest *m,
                     struct err *err)
{
    struct ckpt_file *file = &m->files[m->n_files];
    const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(value, "bytes");
    const cJSON *hash = cJSON_GetObjectItemCaseSensitive(value, "xxh3_128");

    if (m->n_files == CKPT_FILES_MAX)
        return ckpt_unexpected(doc, value, "at most 64 files", err);
    if (!is_file_name(value->string))
        return ckpt_unexpected(doc, value, "a plain file name as the key", err);
    if (!cJSON_IsObject(value))
        return ckpt_unexpected(doc, value, "an object with bytes and xxh3_128", err);
    if (bytes == NULL || hash == NULL)
        return missing(doc, value, bytes == NULL ? "bytes" : "xxh3_128", err);
    if (ckpt_read_integer(doc, bytes, INT64_MAX, &file->bytes, err) < 0)
        return ERR_CORRUPT;
    if (!is_hash(hash))
        return ckpt_unexpected(doc, hash, "32 hexadecimal digits", err);
    strcpy(file->name, value->string);
    strcpy(file->hash, hash->valuestring);
    m->n_files++;
    return 0;
}

static int read_format(const struct json *doc, const cJSON *root, struct ckpt_manifest *m,
                       struct err *err)
{
    const cJSON *format = cJSON_GetObjectItemCaseSensitive(root, "format");
    uint64_t number;

    if (format == NULL)
        return missing(doc, root, "format", err);
    if (ckpt_read_integer(doc, format, UINT32_MAX, &number, err) < 0)
        return ERR_CORRUPT;
    if (number < CKPT_FORMAT || number > CKPT_DYNAMIC_FORMAT)
        return err_set(err, ERR_UNSUPPORTED,
                       "checkpoint format %" PRIu64 ", this version reads %d to %d", number,
                       CKPT_FORMAT, CKPT_DYNAMIC_FORMAT);
    m->has_shards = number != CKPT_FORMAT;
    m->has_ids = number == CKPT_DYNAMIC_FORMAT;
    return 0;
}

/* The member that states how rows are divided among files. Another rule would be another format. */
static int read_shards(const struct json *doc, const cJSON *root, bool has_ids, struct err *err)
{
    const cJSON *shards = cJSON_GetObjectItemCaseSensitive(root, "shards");
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(shards, "files");
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(shards, "rows");
    const cJSON *ids = cJSON_GetObjectItemCaseSensitive(shards, "ids");
    uint64_t n;

    if (!cJSON_IsObject(shards))
        return shards == NULL ? missing(doc, root, "shards", err)
                              : ckpt_unexpected(doc, shards, "an object with files and rows", err);
    if (files == NULL || rows == NULL)
        return missing(doc, shards, files == NULL ? "files" : "rows", err);
    if (ckpt_read_integer(doc, files, UINT32_MAX, &n, err) < 0)
        return ERR_CORRUPT;
    if (n != CKPT_SHARD_FILES)
        return ckpt_unexpected(doc, files, "16 shard files", err);
    if (!cJSON_IsString(rows) || strcmp(rows->valuestring, CKPT_ROWS_RULE) != 0)
        return ckpt_unexpected(doc, rows, "the rule of this version", err);
    if (has_ids && ids == NULL)
        return missing(doc, shards, "ids", err);
    if (has_ids && (!cJSON_IsString(ids) || strcmp(ids->valuestring, CKPT_IDS_RULE) != 0))
        return ckpt_unexpected(doc, ids, "the rule of this version", err);
    return 0;
}

/* The files that every checkpoint of the format has. Shard files of the optimizer exist if the optimizer has
 * slots: all of them, or none. */
static int check_files(const struct json *doc, const cJSON *files, const struct ckpt_manifest *m,
                       struct err *err)
{
    char name[CKPT_FILE_NAME_BYTES];
    bool has_slots;

    for (int kind = 0; kind < CKPT_SHARD_KINDS; kind++)
        if (ckpt_manifest_file(m, ckpt_dense_file(m, kind)) == NULL)
            return missing(doc, files, ckpt_dense_file(m, kind), err);
    if (!m->has_shards)
        return 0;
    if (ckpt_manifest_file(m, CKPT_INDEX_FILE) == NULL)
        return missing(doc, files, CKPT_INDEX_FILE, err);
    ckpt_shard_file_name(CKPT_SHARD_OPTIMIZER, 0, name);
    has_slots = ckpt_manifest_file(m, name) != NULL;
    for (int kind = 0; kind < CKPT_SHARD_KINDS; kind++)
        for (uint32_t f = 0; f < CKPT_SHARD_FILES; f++) {
            bool is_expected = kind == CKPT_SHARD_MODEL || has_slots;

            ckpt_shard_file_name(kind, f, name);
            if (is_expected && ckpt_manifest_file(m, name) == NULL)
                return missing(doc, files, name, err);
            if (!is_expected && ckpt_manifest_file(m, name) != NULL) {
                ckpt_shard_file_name(kind, 0, name);
                return missing(doc, files, name, err);
            }
        }
    return 0;
}

static int read_document(const struct json *doc, struct ckpt_manifest *m, struct err *err)
{
    const cJSON *root = json_root(doc), *files, *value;
    int rc;

    if (!cJSON_IsObject(root))
        return ckpt_unexpected(doc, root, "an object", err);
    rc = read_format(doc, root, m, err);
    if (rc == 0 && m->has_shards)
        rc = read_shards(doc, root, m->has_ids, err);
    for (size_t i = 0; rc == 0 && i < COUNT_OF(members); i++) {
        value = cJSON_GetObjectItemCaseSensitive(root, members[i].name);
        if (value != NULL)
            rc = read_member(doc, value, &members[i], &m->meta, err);
        else if (!members[i].is_optional)
            rc = missing(doc, root, members[i].name, err);
    }
    if (rc < 0)
        return rc;
    files = cJSON_GetObjectItemCaseSensitive(root, "files");
    if (!cJSON_IsObject(files))
        return files == NULL ? missing(doc, root, "files", err)
                             : ckpt_unexpected(doc, files, "an object", err);
    for (value = files->child; rc == 0 && value != NULL; value = value->next)
        rc = read_file(doc, value, m, err);
    return rc == 0 ? check_files(doc, files, m, err) : rc;
}

int ckpt_checksum_verify(const char *what, const char *text, size_t n, struct err *err)
{
    const char *sum = text + n - SUM_BYTES;
    char hash[CKPT_HASH_BYTES];

    if (n < SUM_BYTES || memcmp(sum, SUM_HEAD, strlen(SUM_HEAD)) != 0)
        return err_set(err, ERR_CORRUPT,
                       "%s does not end with its checksum: it is truncated or was changed", what);
    hash_text(text, n - SUM_BYTES, hash);
    sum += strlen(SUM_HEAD);
    if (memcmp(sum, hash, CKPT_HASH_BYTES - 1) != 0)
        return err_set(err, ERR_CORRUPT,
                       "%s: checksum (XXH3-128) is %s, expected %.32s: it was changed after it was "
                       "written",
                       what, hash, sum);
    return 0;
}

int ckpt_manifest_parse(const char *text, size_t n, struct ckpt_manifest *out, struct err *err)
{
    struct ckpt_manifest *m = calloc(1, sizeof(*m));
    struct json *doc;
    int rc;

    if (m == NULL)
        return err_set(err, ERR_NOMEM, CKPT_MANIFEST_FILE ": out of memory");
    rc = ckpt_checksum_verify(CKPT_MANIFEST_FILE, text, n, err);
    if (rc == 0)
        rc = json_parse(CKPT_MANIFEST_FILE, text, n, 0, &doc, err);
    if (rc == ERR_INPUT)
        rc = ckpt_corrupt(err);
    if (rc == 0) {
        rc = read_document(doc, m, err);
        json_free(doc);
    }
    if (rc == 0)
        *out = *m;
    free(m);
    return rc;
}

int ckpt_manifest_read(const char *folder, struct ckpt_manifest *out, struct err *err)
{
    char *path = fs_join(folder, CKPT_MANIFEST_FILE), *text = NULL;
    uint64_t bytes = 0;
    int fd, rc = 0;

    if (path == NULL)
        return err_set(err, ERR_NOMEM, "'%s': out of memory", folder);
    fd = ckpt_open_regular(path, &bytes, err);
    if (fd < 0)
        rc = fd;
    else if (bytes > CKPT_MANIFEST_MAX)
        rc = err_set(err, ERR_CORRUPT, "'%s' has %" PRIu64 " bytes, more than a manifest can have",
                     path, bytes);
    else if ((text = malloc(bytes + 1)) == NULL)
        rc = err_set(err, ERR_NOMEM, "'%s': out of memory", path);
    if (rc == 0)
        rc = ckpt_read_all(fd, path, text, bytes, err);
    if (rc == 0) {
        rc = ckpt_manifest_parse(text, bytes, out, err);
        if (rc < 0)
            rc = err_wrap(err, rc, "'%s'", folder);
    }
    if (fd >= 0)
        close(fd);
    free(text);
    free(path);
    return rc;
}

const char *ckpt_dense_file(const struct ckpt_manifest *m, enum ckpt_shard_kind kind)
{
    if (kind == CKPT_SHARD_MODEL)
        return m->has_shards ? CKPT_DENSE_MODEL_FILE : CKPT_MODEL_FILE;
    return m->has_shards ? CKPT_DENSE_OPTIMIZER_FILE : CKPT_OPTIMIZER_FILE;
}

const struct ckpt_file *ckpt_manifest_file(const struct ckpt_manifest *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_files; i++)
        if (strcmp(m->files[i].name, name) == 0)
            return &m->files[i];
    return NULL;
}
