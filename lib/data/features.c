/* features.c - checks the features, and computes the layout of a stored sample. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "data/data_priv.h"

static int bad_feature(const struct data_feature *f, struct err *err, const char *what)
{
    char shape[160];

    return err_set(err, ERR_INPUT, "feature '%s' (%s %s, fed as %s): %s", f->name,
                   tensor_dtype_name(f->stored), shape_print(&f->shape, shape, sizeof(shape)),
                   tensor_dtype_name(f->fed), what);
}

int data_refuse_feature(const struct data_feature *f, const char *format, const char *what,
                        struct err *err)
{
    char shape[160];

    return err_set(err, ERR_INPUT, "feature '%s' (%s %s) of %s: %s", f->name,
                   tensor_dtype_name(f->stored), shape_print(&f->shape, shape, sizeof(shape)),
                   format, what);
}

bool data_is_image(const struct data_feature *f)
{
    return f->encoded || f->n_steps > 0;
}

static int check_image(const struct data_feature *f, struct err *err)
{
    const int64_t *dim = f->shape.dim;
    int64_t channels = f->shape.rank == 2 ? 1 : dim[f->channels_last ? 2 : 0];
    uint32_t at = f->shape.rank == 3 && !f->channels_last;

    if (f->stored != TENSOR_U8 || f->fed != TENSOR_F32)
        return bad_feature(f, err, "an image is stored as uint8 and feeds a float32 input");
    if (f->shape.rank != 2 && f->shape.rank != 3)
        return bad_feature(f, err, "an image has the shape [channels, height, width], with "
                                   "channels_last [height, width, channels], or [height, width]");
    if (channels < 1 || channels > DATA_CHANNELS_MAX ||
        (f->encoded && channels != 1 && channels != 3))
        return bad_feature(f, err, "an image has 1 or 3 channels, raw ones up to 4");
    if (dim[at] > 65500 || dim[at + 1] > 65500)
        return bad_feature(f, err, "an image has at most 65500 pixels each way");
    if (f->pad || f->truncate)
        return bad_feature(f, err, "an image is neither padded nor truncated");
    return 0;
}

/* Checks the steps that apply in this set: at most one step may crop the image. */
static int check_steps(const struct data_feature *f, bool training, struct err *err)
{
    uint32_t cuts = 0;

    for (uint32_t i = 0; i < f->n_steps; i++) {
        const struct data_step *step = &f->steps[i];

        if (!(training ? step->in_training : step->in_evaluation))
            continue;
        if (step->op <= DATA_CENTER_CROP && cuts++ > 0)
            return bad_feature(f, err, "more than one step crops the image: keep one of them");
        if (step->op == DATA_RANDOM_RESIZED_CROP &&
            !(step->scale[0] > 0 && step->scale[0] <= step->scale[1] && step->scale[1] <= 1 &&
              step->ratio[0] >= 1e-3 && step->ratio[0] <= step->ratio[1] && step->ratio[1] <= 1e3))
            return bad_feature(f, err,
                               "random_resized_crop: expected 0 < scale[0] <= scale[1] <= 1 "
                               "and 0.001 <= ratio[0] <= ratio[1] <= 1000");
        for (uint32_t k = 0; step->op == DATA_NORMALIZE && k < DATA_CHANNELS_MAX; k++)
            if (!(step->std[k] >= 1e-6 && step->std[k] <= 1e6 && fabs(step->mean[k]) <= 1e6))
                return bad_feature(
                    f, err, "normalize: expected mean and std as fractions of 1, std above 0");
    }
    return 0;
}

static int check_feature(const struct data_feature *f, int64_t elements, bool training,
                         struct err *err)
{
    if (f->name == NULL || f->name[0] == '\0')
        return err_set(err, ERR_INPUT, "a feature without a name");
    if (data_convert_find(f->stored, f->fed) == NULL)
        return bad_feature(f, err,
                           "unsupported conversion; float32 converts to float32; integers to "
                           "float32, int32 or int64; uint8, int32 and int64 also to uint8 (0 to "
                           "255) or bool (not 0)");
    /* A record has at most DATA_RECORD_BYTES_MAX bytes, and a value has at least one byte. */
    if (elements < 1 || elements > DATA_RECORD_BYTES_MAX)
        return bad_feature(f, err, "expected between 1 and 2^30 elements");
    if (f->fed == TENSOR_F32 && !(isfinite((float)f->scale) && isfinite((float)f->offset)))
        return bad_feature(f, err, "scale and offset must be finite floats");
    if (f->fed != TENSOR_F32 && (f->scale != 1 || f->offset != 0) &&
        (f->scale != 0 || f->offset != 0))
        return bad_feature(f, err, "scale and offset need a float32 input");
    if (f->derived != DATA_STORED && f->stored != TENSOR_I64)
        return bad_feature(f, err, "a derived feature must be int64");
    if (f->derived == DATA_LENGTH && elements != 1)
        return bad_feature(f, err, "a length must be one int64");
    if (f->upright && !f->encoded)
        return bad_feature(f, err,
                           "the orientation is that of a JPEG or PNG file: set \"encoded\"");
    if (!data_is_image(f))
        return 0;
    return check_image(f, err) < 0 ? ERR_INPUT : check_steps(f, training, err);
}

/* Copies the steps that apply in this set. */
static int copy_steps(struct data_set *s, uint32_t i, struct err *err)
{
    struct data_feature *f = &s->features[i];
    uint32_t n = 0;

    s->steps[i] = arena_array(&s->mem, f->n_steps + 1, sizeof(**s->steps));
    if (s->steps[i] == NULL)
        return err_set(err, ERR_NOMEM, "features: out of memory");
    for (uint32_t k = 0; k < f->n_steps; k++)
        if (s->training ? f->steps[k].in_training : f->steps[k].in_evaluation)
            s->steps[i][n++] = f->steps[k];
    f->steps = s->steps[i];
    f->n_steps = n;
    return 0;
}

/* Copies *text to the set; false: out of memory. */
static bool copy_text(struct data_set *s, const char **text)
{
    if (*text == NULL)
        return true;
    *text = arena_strdup(&s->mem, *text);
    return *text != NULL;
}

/* Returns the first dimension, which is the number of items for packing, segments and positions. */
static int64_t items_of(const struct data_feature *f)
{
    return f->shape.rank > 0 ? f->shape.dim[0] : 1;
}

static int find_derived(struct data_set *s, struct err *err)
{
    for (uint32_t i = 0; i < s->n_features; i++) {
        const struct data_feature *f = &s->features[i];
        uint32_t k = 0;

        s->layout.of[i] = UINT32_MAX;
        if (f->derived == DATA_STORED)
            continue;
        CHECK(f->of != NULL);
        while (k < s->n_features && (k == i || strcmp(s->features[k].name, f->of) != 0))
            k++;
        if (k == s->n_features || s->features[k].derived != DATA_STORED || s->features[k].encoded)
            return bad_feature(f, err, "its source is not a stored list of the record");
        if (f->derived != DATA_LENGTH &&
            (f->shape.rank != 1 || s->features[k].rows != DATA_NO_ROWS ||
             s->features[k].shape.rank == 0 || f->shape.dim[0] != items_of(&s->features[k])))
            return bad_feature(f, err,
                               "segments and positions have one dimension, the first dimension of "
                               "their source");
        s->layout.of[i] = k;
    }
    return 0;
}

static int find_rows(struct data_set *s, bool packs, struct err *err)
{
    for (uint32_t i = 0; i < s->n_features; i++) {
        struct data_feature *f = &s->features[i];
        const struct data_feature *by;
        uint32_t k = 0;

        s->layout.rows_by[i] = UINT32_MAX;
        if (f->rows == DATA_NO_ROWS)
            continue;
        CHECK(f->rows_by != NULL);
        while (k < s->n_features && strcmp(s->features[k].name, f->rows_by) != 0)
            k++;
        by = &s->features[k];
        if (k == s->n_features || by->derived != DATA_STORED || by->rows != DATA_NO_ROWS ||
            by->stored != TENSOR_I64 || by->shape.rank != 1 || f->shape.rank < 2 ||
            by->shape.dim[0] != f->shape.dim[0] + (f->rows == DATA_ROW_SPLITS))
            return bad_feature(f, err,
                               "a feature of shape [rows, items, ...] needs an int64 list of row "
                               "lengths [rows] or of row splits [rows + 1]");
        if (s->source->index_kind != 1 || data_is_image(f) || f->truncate || packs ||
            f->derived != DATA_STORED)
            return bad_feature(f, err,
                               "rows need a stored list in a TFRecord file that is neither "
                               "truncated nor packed nor an image");
        f->pad = true; /* each row is padded */
        s->layout.rows_by[i] = k;
    }
    return 0;
}

/* Checks that all stored features are lists with the same number of items T. */
static int check_packing(struct data_set *s, const char *name, struct err *err)
{
    int64_t items;

    s->layout.pack_by = 0;
    while (s->layout.pack_by < s->n_features &&
           strcmp(s->features[s->layout.pack_by].name, name) != 0)
        s->layout.pack_by++;
    if (s->layout.pack_by == s->n_features ||
        s->features[s->layout.pack_by].derived != DATA_STORED ||
        s->features[s->layout.pack_by].shape.rank == 0)
        return err_set(err, ERR_INPUT,
                       "pack by feature '%s': expected a stored list of shape [T, ...]", name);
    items = items_of(&s->features[s->layout.pack_by]);
    for (uint32_t i = 0; i < s->n_features; i++) {
        struct data_feature *f = &s->features[i];

        if (f->derived == DATA_LENGTH)
            continue;
        if (data_is_image(f))
            return bad_feature(f, err, "images cannot be packed");
        if (f->shape.rank == 0 || items_of(f) != items)
            return bad_feature(f, err,
                               "with packing, each stored feature is a list with the first "
                               "dimension of the feature by which records are packed");
        f->pad = f->derived == DATA_STORED; /* a record may be shorter than the pack */
    }
    return 0;
}

int data_copy_features(struct data_set *s, const struct data_opts *opts, struct err *err)
{
    uint32_t n = opts->n_features;
    int rc = 0;

    CHECK(n > 0);
    s->n_features = n;
    s->features = arena_array(&s->mem, n, sizeof(*s->features));
    s->steps = arena_array(&s->mem, n, sizeof(*s->steps));
    s->layout.elements = arena_array(&s->mem, n, sizeof(*s->layout.elements));
    s->layout.stored_at = arena_array(&s->mem, n, sizeof(*s->layout.stored_at));
    s->layout.stored_size = arena_array(&s->mem, n, sizeof(*s->layout.stored_size));
    s->layout.fed_bytes = arena_array(&s->mem, n, sizeof(*s->layout.fed_bytes));
    s->layout.of = arena_array(&s->mem, n, sizeof(*s->layout.of));
    s->layout.rows_by = arena_array(&s->mem, n, sizeof(*s->layout.rows_by));
    s->layout.inner = arena_array(&s->mem, n, sizeof(*s->layout.inner));
    if (s->features == NULL || s->steps == NULL || s->layout.elements == NULL ||
        s->layout.stored_at == NULL || s->layout.stored_size == NULL ||
        s->layout.fed_bytes == NULL || s->layout.of == NULL || s->layout.inner == NULL ||
        s->layout.rows_by == NULL)
        return err_set(err, ERR_NOMEM, "features: out of memory");
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        struct data_feature *f = &s->features[i];
        int64_t elements = shape_elements(&opts->features[i].shape);

        if (check_feature(&opts->features[i], elements, s->training, err) < 0)
            return ERR_INPUT;
        *f = opts->features[i];
        s->layout.elements[i] = (size_t)elements;
        s->layout.inner[i] = s->layout.elements[i] / (size_t)items_of(f);
        s->layout.fed_bytes[i] = s->layout.elements[i] * tensor_dtype_bytes(f->fed);
        s->layout.stored_at[i] = s->layout.stored_bytes;
        s->layout.stored_size[i] = f->encoded
                                       ? sizeof(struct data_bytes)
                                       : s->layout.elements[i] * tensor_dtype_bytes(f->stored);
        s->layout.stored_bytes += (s->layout.stored_size[i] + 7) & ~(size_t)7;
        rc = copy_steps(s, i, err);
        if (rc == 0 && !(copy_text(s, &f->name) && copy_text(s, &f->of) &&
                         copy_text(s, &f->rows_by) && copy_text(s, &f->column)))
            rc = err_set(err, ERR_NOMEM, "features: out of memory");
    }
    if (rc == 0)
        rc = find_derived(s, err);
    if (rc == 0)
        rc = find_rows(s, opts->origin.pack != NULL, err);
    if (rc == 0 && opts->origin.pack != NULL)
        rc = check_packing(s, opts->origin.pack, err);
    return rc == 0 && s->source->check != NULL ? s->source->check(s, err) : rc;
}

static void fill_values(void *to, size_t n, const void *value, size_t width)
{
    for (size_t i = 0; i < n; i++)
        memcpy((uint8_t *)to + i * width, value, width);
}

void data_pad(const struct data_feature *f, void *stored, size_t have, size_t n)
{
    size_t width = tensor_dtype_bytes(f->stored);
    uint8_t *to = (uint8_t *)stored + have * width;
    int64_t i64 = (int64_t)f->pad_value;
    int32_t i32 = (int32_t)i64;
    float f32 = (float)f->pad_value;

    CHECK(have <= n);
    n -= have;
    switch (f->stored) {
    case TENSOR_U8:
        memset(to, (uint8_t)i64, n);
        break;
    case TENSOR_F32:
        fill_values(to, n, &f32, sizeof(f32));
        break;
    case TENSOR_I32:
        fill_values(to, n, &i32, sizeof(i32));
        break;
    default:
        CHECK(f->stored == TENSOR_I64);
        fill_values(to, n, &i64, sizeof(i64));
    }
}
