/* tensor_file.c - reads and writes a file with one TensorProto, as in ONNX's test data. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fs.h"
#include "graph/graph_priv.h"
#include "tensor/narrow.h"

int graph_read_tensor_bytes(const char *path, const uint8_t *bytes, size_t n, struct arena *mem,
                            struct tensor *out, struct err *err)
{
    struct graph_external external = { .model_path = path };
    struct tensor_source src = { .mem = mem, .external = &external, .budget = n };
    uint64_t budget = graph_scan_budget(n);
    struct tensor t = { 0 };
    Onnx__TensorProto *p;
    void *data;
    int rc = graph_scan(&onnx__tensor_proto__descriptor, bytes, n, &budget, err);

    if (rc < 0)
        return rc;
    p = onnx__tensor_proto__unpack(NULL, n, bytes);
    if (p == NULL)
        return err_set(err, ERR_INPUT, "the fields do not fit a TensorProto");
    rc = graph_read_tensor(&src, p, "the tensor", &t, err);
    if (rc == 0) {
        data = arena_alloc(mem, tensor_bytes(&t));
        if (data == NULL)
            rc = err_set(err, ERR_NOMEM, "out of memory for %zu bytes", tensor_bytes(&t));
        else if (tensor_bytes(&t) > 0)
            memcpy(data, t.data, tensor_bytes(&t)); /* the message may own it */
        t.data = data;
    }
    if (rc == 0)
        rc = graph_external_check(&external, err);
    graph_external_close(&external);
    onnx__tensor_proto__free_unpacked(p, NULL);
    if (rc == 0)
        *out = t;
    return rc;
}

int graph_read_tensor_file(const char *path, uint64_t max_bytes, struct arena *mem,
                           struct tensor *out, struct err *err)
{
    uint8_t *bytes;
    size_t n;
    int rc = graph_read_file(path, max_bytes, &bytes, &n, err);

    if (rc < 0)
        return rc;
    rc = n > 0 ? graph_read_tensor_bytes(path, bytes, n, mem, out, err)
               : err_set(err, ERR_INPUT, "the file is empty");
    free(bytes);
    return rc < 0 ? err_wrap(err, rc, "'%s'", path) : 0;
}

int graph_write_tensor_file(const char *path, const char *name, const struct tensor *t,
                            struct err *err)
{
    Onnx__TensorProto p;
    int64_t dims[TENSOR_MAX_RANK];
    uint8_t *bytes, *packed = NULL;
    size_t n;
    int rc;

    if (tensor_file_bits(t->dtype) < 8) {
        packed = malloc(tensor_file_bytes(t) + 1);
        if (packed == NULL)
            return err_set(err, ERR_NOMEM, "write '%s': out of memory", path);
        tensor_pack(t->dtype, t->data, (size_t)tensor_elements(t), packed);
    }
    onnx__tensor_proto__init(&p);
    memcpy(dims, t->shape.dim, sizeof(dims));
    p.name = (char *)(uintptr_t)name;
    p.has_data_type = p.has_raw_data = 1;
    p.data_type = (int32_t)t->dtype;
    p.dims = dims;
    p.n_dims = t->shape.rank;
    p.raw_data = (ProtobufCBinaryData){ tensor_file_bytes(t), packed != NULL ? packed : t->data };
    n = onnx__tensor_proto__get_packed_size(&p);
    bytes = malloc(n);
    if (bytes == NULL) {
        free(packed);
        return err_set(err, ERR_NOMEM, "write '%s': out of memory", path);
    }
    onnx__tensor_proto__pack(&p, bytes);
    rc = fs_replace(path, bytes, n, err);
    free(packed);
    free(bytes);
    return rc;
}
