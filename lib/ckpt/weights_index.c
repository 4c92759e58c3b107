/* weights_index.c - parses the index of a set of safetensors files. */
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "ckpt/weights.h"

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "index of weights: out of memory");
}

static int unexpected(const struct json *doc, const cJSON *value, const char *expected,
                      struct err *err)
{
    char found[96];

    json_describe(doc, value, found, sizeof(found));
    return json_error(doc, value, err, "expected %s, found %s", expected, found);
}

static int file_number(const struct json *doc, const cJSON *value, struct map *files,
                       struct ckpt_index *index, uint64_t *out, struct err *err)
{
    const char *name = value->valuestring;

    if (map_get(files, name, out))
        return 0;
    if (index->n_files == CKPT_WEIGHTS_FILES_MAX)
        return json_error(doc, value, err, "more than %d files", CKPT_WEIGHTS_FILES_MAX);
    *out = index->n_files;
    index->files[index->n_files] = arena_strdup(&index->mem, name);
    if (index->files[index->n_files] == NULL || map_put(files, name, *out) == MAP_NOMEM)
        return no_memory(err);
    index->n_files++;
    return 0;
}

static int read_map(const struct json *doc, const cJSON *map, struct ckpt_index *index,
                    struct err *err)
{
    struct map files = { 0 };
    const cJSON *value;
    int rc = 0;

    for (value = map->child; value != NULL && rc == 0; value = value->next) {
        uint64_t file = 0;

        if (!cJSON_IsString(value) || value->valuestring[0] == '\0') {
            rc = unexpected(doc, value, "the name of a .safetensors file", err);
            break;
        }
        rc = file_number(doc, value, &files, index, &file, err);
        if (rc == 0 && map_put(&index->file_of, value->string, file) == MAP_NOMEM)
            rc = no_memory(err);
        index->n_tensors++;
    }
    map_fini(&files);
    return rc;
}

static int read_document(const struct json *doc, struct ckpt_index *index, struct err *err)
{
    const cJSON *root = json_root(doc), *map;

    if (!cJSON_IsObject(root))
        return unexpected(doc, root, "an object with \"weight_map\"", err);
    map = cJSON_GetObjectItemCaseSensitive(root, "weight_map");
    if (map == NULL)
        return json_error(doc, root, err,
                          "\"weight_map\" is missing; expected the index of a set of safetensors "
                          "files, such as model.safetensors.index.json");
    if (!cJSON_IsObject(map) || map->child == NULL)
        return unexpected(doc, map, "an object of tensor names and files", err);
    index->files = arena_array(&index->mem, CKPT_WEIGHTS_FILES_MAX, sizeof(*index->files));
    return index->files != NULL ? read_map(doc, map, index, err) : no_memory(err);
}

int ckpt_index_parse(const char *name, const char *text, size_t n, struct ckpt_index *out,
                     struct err *err)
{
    struct json *doc;
    int rc;

    *out = (struct ckpt_index){ .n_files = 0 };
    rc = json_parse(name, text, n, 0, &doc, err);
    if (rc < 0)
        return rc;
    rc = read_document(doc, out, err);
    json_free(doc);
    return rc;
}

void ckpt_index_fini(struct ckpt_index *index)
{
    map_fini(&index->file_of);
    arena_fini(&index->mem);
    *index = (struct ckpt_index){ .n_files = 0 };
}
