/* reflection.c - grpc.reflection (v1alpha and v1): the services of this task, from the file
 * descriptors that protoc wrote (google/protobuf/descriptor.proto defines the field numbers used
 * here).
 *
 * The descriptors are built into the program, so the scanner does not validate them. */
#include "rdzv/rdzv_priv.h"

#include <string.h>

#include "base/check.h"
#include "proto/reflection.pb-c.h"

extern const unsigned char proto_descriptors[];
extern const size_t proto_descriptors_bytes;

enum {
    SET_FILE = 1, /* FileDescriptorSet.file */
    FILE_NAME = 1,
    FILE_PACKAGE = 2,
    FILE_MESSAGE = 4,
    FILE_ENUM = 5,
    FILE_SERVICE = 6,
    ANY_NAME = 1, /* of a message, enum, service or method */
    MESSAGE_NESTED = 3,
    MESSAGE_ENUM = 4,
    SERVICE_METHOD = 2,
    SERVICES_MAX = 16,
};

struct span {
    const unsigned char *at;
    size_t n;
};

static uint64_t varint(struct span *s)
{
    uint64_t v = 0;

    for (uint32_t shift = 0; s->n > 0 && shift < 64; shift += 7) {
        unsigned char byte = *s->at++;

        s->n--;
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            break;
    }
    return v;
}

/* Reads the next field of `message`. Returns false at the end. Only fields with a length have a
 * value. */
static bool next_field(struct span *message, uint32_t *field, struct span *value)
{
    uint64_t key;

    if (message->n == 0)
        return false;
    key = varint(message);
    *field = (uint32_t)(key >> 3);
    *value = (struct span){ 0 };
    if ((key & 7) == 0) {
        (void)varint(message); /* an integer field: not used here */
        return true;
    }
    CHECK((key & 7) == 2);
    value->n = (size_t)varint(message);
    CHECK(value->n <= message->n);
    value->at = message->at;
    message->at += value->n;
    message->n -= value->n;
    return true;
}

static struct span first(struct span message, uint32_t wanted)
{
    uint32_t field;
    struct span value;

    while (next_field(&message, &field, &value))
        if (field == wanted)
            return value;
    return (struct span){ 0 };
}

static bool equals(struct span s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.at, text, s.n) == 0;
}

/* Removes `name` from the front of *symbol; the rest is "", or the part after a dot. */
static bool strip(const char **symbol, struct span name)
{
    const char *s = *symbol;

    if (strncmp(s, (const char *)name.at, name.n) != 0)
        return false;
    s += name.n;
    if (s[0] != '\0' && (s[0] != '.' || s[1] == '\0'))
        return false;
    *symbol = s[0] == '.' ? s + 1 : s;
    return true;
}

/* Returns true if `symbol` is this item or a part of it. `kind` is the number of the field that
 * contained it. */
static bool holds(struct span thing, uint32_t kind, const char *symbol)
{
    uint32_t field;
    struct span value, rest = thing;

    if (!strip(&symbol, first(thing, ANY_NAME)))
        return false;
    if (*symbol == '\0')
        return true;
    while (next_field(&rest, &field, &value)) {
        if (kind == FILE_MESSAGE && field == MESSAGE_NESTED && holds(value, FILE_MESSAGE, symbol))
            return true;
        if (kind == FILE_MESSAGE && field == MESSAGE_ENUM && holds(value, FILE_ENUM, symbol))
            return true;
        if (kind == FILE_SERVICE && field == SERVICE_METHOD &&
            equals(first(value, ANY_NAME), symbol))
            return true;
    }
    return false;
}

static bool file_holds(struct span file, const char *symbol)
{
    uint32_t field;
    struct span value, rest = file;

    if (!strip(&symbol, first(file, FILE_PACKAGE)) || *symbol == '\0')
        return false;
    while (next_field(&rest, &field, &value))
        if ((field == FILE_MESSAGE || field == FILE_ENUM || field == FILE_SERVICE) &&
            holds(value, field, symbol))
            return true;
    return false;
}

static bool file_is(struct span file, const char *name)
{
    return equals(first(file, FILE_NAME), name);
}

/* Returns the first file for which match(file, what) is true. */
static bool find_file(bool (*match)(struct span file, const char *what), const char *what,
                      struct span *out)
{
    struct span set = { proto_descriptors, proto_descriptors_bytes };
    uint32_t field;

    while (next_field(&set, &field, out))
        if (field == SET_FILE && match(*out, what))
            return true;
    return false;
}

/* Writes "trainerd.v1.Control" and so on to `out`; returns the number of services. */
static uint32_t list_services(char out[SERVICES_MAX][128])
{
    struct span set = { proto_descriptors, proto_descriptors_bytes }, file, value;
    uint32_t field, n = 0;

    while (next_field(&set, &field, &file)) {
        struct span package = first(file, FILE_PACKAGE), rest = file;

        while (next_field(&rest, &field, &value)) {
            struct span name;

            if (field != FILE_SERVICE)
                continue;
            name = first(value, ANY_NAME);
            CHECK(n < SERVICES_MAX && package.n + 1 + name.n < 128);
            memcpy(out[n], package.at, package.n);
            out[n][package.n] = '.';
            memcpy(out[n] + package.n + 1, name.at, name.n);
            out[n++][package.n + 1 + name.n] = '\0';
        }
    }
    return n;
}

static void answer_services(struct rdzv_in *call,
                            Grpc__Reflection__V1alpha__ServerReflectionResponse *a)
{
    Grpc__Reflection__V1alpha__ListServiceResponse list =
        GRPC__REFLECTION__V1ALPHA__LIST_SERVICE_RESPONSE__INIT;
    Grpc__Reflection__V1alpha__ServiceResponse services[SERVICES_MAX], *at[SERVICES_MAX];
    char names[SERVICES_MAX][128];

    list.n_service = list_services(names);
    list.service = at;
    for (size_t i = 0; i < list.n_service; i++) {
        grpc__reflection__v1alpha__service_response__init(&services[i]);
        services[i].name = names[i];
        at[i] = &services[i];
    }
    a->message_response_case =
        GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    a->list_services_response = &list;
    rdzv_in_send(call, &a->base);
}

static void answer_file(struct rdzv_in *call,
                        Grpc__Reflection__V1alpha__ServerReflectionResponse *a, struct span file)
{
    Grpc__Reflection__V1alpha__FileDescriptorResponse files =
        GRPC__REFLECTION__V1ALPHA__FILE_DESCRIPTOR_RESPONSE__INIT;
    ProtobufCBinaryData bytes = { .data = (uint8_t *)file.at, .len = file.n };

    files.n_file_descriptor_proto = 1;
    files.file_descriptor_proto = &bytes;
    a->message_response_case =
        GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    a->file_descriptor_response = &files;
    rdzv_in_send(call, &a->base);
}

static void answer_error(struct rdzv_in *call,
                         Grpc__Reflection__V1alpha__ServerReflectionResponse *a,
                         grpc_status_code code, const char *text)
{
    Grpc__Reflection__V1alpha__ErrorResponse e = GRPC__REFLECTION__V1ALPHA__ERROR_RESPONSE__INIT;

    e.error_code = (int)code;
    e.error_message = (char *)text;
    a->message_response_case =
        GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    a->error_response = &e;
    rdzv_in_send(call, &a->base);
}

void rdzv_reflect(struct rdzv *r, struct rdzv_in *call, void *request)
{
    Grpc__Reflection__V1alpha__ServerReflectionRequest *q = request;
    Grpc__Reflection__V1alpha__ServerReflectionResponse a =
        GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__INIT;
    struct span file;

    (void)r;
    a.valid_host = q->host;
    a.original_request = q;
    switch (q->message_request_case) {
    case GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        answer_services(call, &a);
        break;
    case GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        if (find_file(file_is, q->file_by_filename, &file))
            answer_file(call, &a, file);
        else
            answer_error(call, &a, GRPC_STATUS_NOT_FOUND, "no such file");
        break;
    case GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        if (find_file(file_holds, q->file_containing_symbol, &file))
            answer_file(call, &a, file);
        else
            answer_error(call, &a, GRPC_STATUS_NOT_FOUND, "no such symbol");
        break;
    case GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
    case GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        answer_error(call, &a, GRPC_STATUS_NOT_FOUND, "there are no extensions");
        break;
    default:
        answer_error(call, &a, GRPC_STATUS_UNIMPLEMENTED, "unknown request");
        break;
    }
}
