/* lease_record.c - prints and parses the texts. A record is a JSON object that ends with the
 * checksum of the preceding text, like a manifest; a heartbeat is a line. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "ckpt/ckpt_priv.h"
#include "ckpt/lease_priv.h"

#define WHAT "lease record"

static void print_process(const struct lease_process *p, struct buf *out)
{
    const char *const texts[][2] = { { "space", p->space }, { "host", p->host }, { "since", p->since } };

    if (p->pid == 0)
        return;
    buf_printf(out, ",\n  \"process\": {\"pid\": %" PRIu64 ", \"started\": %" PRIu64, p->pid,
               p->started);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        buf_printf(out, ", \"%s\": ", texts[i][0]);
        buf_json(out, texts[i][1]);
    }
    buf_str(out, "}");
}

void lease_record_print(const struct lease_record *r, struct buf *out)
{
    buf_printf(out, "{\n  \"format\": %d,\n  \"token\": %" PRIu64 ",\n  \"rank\": %" PRIu32 ",\n",
               LEASE_FORMAT, r->token, r->rank);
    buf_str(out, "  \"name\": ");
    buf_json(out, r->name);
    if (r->host[0] != '\0') {
        buf_str(out, ",\n  \"host\": ");
        buf_json(out, r->host);
    }
    if (r->job[0] != '\0') {
        buf_str(out, ",\n  \"job\": ");
        buf_json(out, r->job);
    }
    print_process(&r->process, out);
    buf_printf(out, ",\n  \"incarnation\": \"%016" PRIx64 "\",\n  \"members\": [", r->incarnation);
    for (uint32_t i = 0; i < r->n_members; i++)
        buf_printf(out, "%s%" PRIu32, i > 0 ? ", " : "", r->members[i]);
    buf_str(out, "],\n");
    ckpt_checksum_print(out);
}

/* Returns the member of this name; NULL, with ERR_CORRUPT in *err, if it is missing. */
static const cJSON *member(const struct json *doc, const char *name, struct err *err)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(json_root(doc), name);

    if (value == NULL) {
        json_error(doc, json_root(doc), err, "\"%s\" is missing", name);
        (void)ckpt_corrupt(err); /* the caller returns ERR_CORRUPT */
    }
    return value;
}

static int read_member(const struct json *doc, const char *name, uint64_t max, uint64_t *out,
                       struct err *err)
{
    const cJSON *value = member(doc, name, err);

    return value != NULL ? ckpt_read_integer(doc, value, max, out, err) : ERR_CORRUPT;
}

static int read_members(const struct json *doc, struct lease_record *out, struct err *err)
{
    const cJSON *list = member(doc, "members", err), *value;
    uint64_t rank;
    int rc = 0;

    if (list == NULL)
        return ERR_CORRUPT;
    if (!cJSON_IsArray(list))
        return ckpt_unexpected(doc, list, "an array of ranks", err);
    for (value = list->child; rc == 0 && value != NULL; value = value->next) {
        if (out->n_members == LEASE_MEMBERS_MAX)
            return ckpt_unexpected(doc, value, "at most 4096 ranks", err);
        rc = ckpt_read_integer(doc, value, LEASE_NO_RANK - 1, &rank, err);
        if (rc == 0)
            out->members[out->n_members++] = (uint32_t)rank;
    }
    return rc;
}

static int read_incarnation(const struct json *doc, uint64_t *out, struct err *err)
{
    const cJSON *value = member(doc, "incarnation", err);

    if (value == NULL)
        return ERR_CORRUPT;
    if (!cJSON_IsString(value) || strlen(value->valuestring) != 16 ||
        strspn(value->valuestring, "0123456789abcdef") != 16)
        return ckpt_unexpected(doc, value, "16 hexadecimal digits", err);
    *out = 0;
    for (const char *at = value->valuestring; *at != '\0'; at++)
        *out = *out << 4 | (uint64_t)(*at <= '9' ? *at - '0' : *at - 'a' + 10);
    return 0;
}

static int copy_text(const struct json *doc, const cJSON *value, char *out, size_t room,
                     struct err *err)
{
    if (!cJSON_IsString(value) || strlen(value->valuestring) >= room)
        return ckpt_unexpected(doc, value, "a text within its length limit", err);
    strcpy(out, value->valuestring);
    return 0;
}

static int read_text(const struct json *doc, const char *name, char out[LEASE_NAME_BYTES],
                     struct err *err)
{
    const cJSON *value = member(doc, name, err);

    return value != NULL ? copy_text(doc, value, out, LEASE_NAME_BYTES, err) : ERR_CORRUPT;
}

/* Reads a text that older versions lack. */
static int read_optional_text(const struct json *doc, const char *name, char out[LEASE_NAME_BYTES],
                              struct err *err)
{
    return cJSON_GetObjectItemCaseSensitive(json_root(doc), name) != NULL
               ? read_text(doc, name, out, err)
               : 0;
}

/* Reads the process, which older versions lack. Unknown members are ignored. */
static int read_process(const struct json *doc, struct lease_process *p, struct err *err)
{
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(json_root(doc), "process"), *value;
    const struct { const char *name; uint64_t *number; char *text; size_t room; } fields[] = {
        { "pid", &p->pid, NULL, 0 },
        { "started", &p->started, NULL, 0 },
        { "space", NULL, p->space, sizeof(p->space) },
        { "host", NULL, p->host, sizeof(p->host) },
        { "since", NULL, p->since, sizeof(p->since) },
    };
    int rc = 0;

    if (object == NULL)
        return 0;
    if (!cJSON_IsObject(object))
        return ckpt_unexpected(doc, object, "an object", err);
    for (size_t i = 0; rc == 0 && i < COUNT_OF(fields); i++) {
        value = cJSON_GetObjectItemCaseSensitive(object, fields[i].name);
        if (value == NULL)
            rc = ckpt_unexpected(doc, object, "pid, started, space, host and since", err);
        else if (fields[i].number != NULL)
            rc = ckpt_read_integer(doc, value, LEASE_TOKEN_MAX, fields[i].number, err);
        else
            rc = copy_text(doc, value, fields[i].text, fields[i].room, err);
    }
    return rc;
}

static int read_document(const struct json *doc, uint64_t token, struct lease_record *out,
                         struct err *err)
{
    uint64_t format = 0, rank = 0;
    int rc;

    if (!cJSON_IsObject(json_root(doc)))
        return ckpt_unexpected(doc, json_root(doc), "an object", err);
    rc = read_member(doc, "format", UINT32_MAX, &format, err);
    if (rc == 0 && format != LEASE_FORMAT)
        return err_set(err, ERR_CORRUPT, WHAT ": format %" PRIu64 ", this version reads %d", format,
                       LEASE_FORMAT);
    if (rc == 0)
        rc = read_member(doc, "token", LEASE_TOKEN_MAX, &out->token, err);
    if (rc == 0 && out->token != token)
        return err_set(err, ERR_CORRUPT, WHAT ": found token %" PRIu64 ", its name has %" PRIu64,
                       out->token, token);
    if (rc == 0)
        rc = read_member(doc, "rank", LEASE_NO_RANK - 1, &rank, err);
    out->rank = (uint32_t)rank;
    if (rc == 0)
        rc = read_text(doc, "name", out->name, err);
    if (rc == 0)
        rc = read_optional_text(doc, "host", out->host, err);
    if (rc == 0)
        rc = read_optional_text(doc, "job", out->job, err);
    if (rc == 0)
        rc = read_process(doc, &out->process, err);
    if (rc == 0)
        rc = read_incarnation(doc, &out->incarnation, err);
    return rc == 0 ? read_members(doc, out, err) : rc;
}

int lease_record_parse(const char *text, size_t n, uint64_t token, struct lease_record *out,
                       struct err *err)
{
    struct json *doc;
    int rc = ckpt_checksum_verify(WHAT, text, n, err);

    *out = (struct lease_record){ .token = token };
    if (rc == 0)
        rc = json_parse(WHAT, text, n, 0, &doc, err);
    if (rc == ERR_INPUT)
        return ckpt_corrupt(err);
    if (rc == 0) {
        rc = read_document(doc, token, out, err);
        json_free(doc);
    }
    return rc;
}

void lease_beat_print(uint64_t incarnation, uint64_t count, bool is_released,
                      char out[LEASE_BEAT_BYTES + 1])
{
    snprintf(out, LEASE_BEAT_BYTES + 1, "%016" PRIx64 " %020" PRIu64 " %-9s\n", incarnation, count,
             is_released ? "released" : "alive");
}

bool lease_beat_is_release(const char *bytes, size_t n, uint64_t incarnation)
{
    char line[LEASE_BEAT_BYTES + 1];

    lease_beat_print(incarnation, 0, true, line);
    return n == LEASE_BEAT_BYTES && memcmp(bytes, line, 16) == 0 &&
           memcmp(bytes + 37, line + 37, LEASE_BEAT_BYTES - 37) == 0;
}
