/* set.c - a set: what its features are, its cache, its life. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "data/data_priv.h"
#include "data/order.h"

/* ---- features ---- */

static int bad_feature(const struct data_feature *f, struct err *err, const char *what)
{
    char shape[160];

    return err_set(err, ERR_INPUT, "feature '%s' (%s %s, fed as %s): %s", f->name,
                   tensor_dtype_name(f->stored), shape_print(&f->shape, shape, sizeof(shape)),
                   tensor_dtype_name(f->fed), what);
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

/* Steps say where they are done; at one place there is one cut, and no colours without three channels. */
static int check_steps(const struct data_feature *f, bool training, struct err *err)
{
    uint32_t cuts = 0;

    for (uint32_t i = 0; i < f->n_steps; i++) {
        const struct data_step *step = &f->steps[i];

        if (!(training ? step->in_training : step->in_evaluation))
            continue;
        if (step->op <= DATA_CENTER_CROP && cuts++ > 0)
            return bad_feature(f, err, "more than one step cuts the image: keep one of them");
        if (step->op == DATA_RANDOM_RESIZED_CROP &&
            !(step->scale[0] > 0 && step->scale[0] <= step->scale[1] && step->scale[1] <= 1 &&
              step->ratio[0] >= 1e-3 && step->ratio[0] <= step->ratio[1] && step->ratio[1] <= 1e3))
            return bad_feature(f, err, "random_resized_crop: scale is from above 0 to 1, ratio from "
                                       "0.001 to 1000, the lower one first");
        for (uint32_t k = 0; step->op == DATA_NORMALIZE && k < DATA_CHANNELS_MAX; k++)
            if (!(step->std[k] >= 1e-6 && step->std[k] <= 1e6 && fabs(step->mean[k]) <= 1e6))
                return bad_feature(f, err, "normalize: mean and std are shares of 1, std above 0");
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
                           "no such conversion; float32 stays float32, integers may "
                           "become float32, int32 or int64");
    /* A record has at most DATA_RECORD_BYTES_MAX bytes, and no value less than one of them. */
    if (elements < 1 || elements > DATA_RECORD_BYTES_MAX)
        return bad_feature(f, err, "expected between 1 and 2^30 elements");
    if (f->fed == TENSOR_F32 && !(isfinite((float)f->scale) && isfinite((float)f->offset)))
        return bad_feature(f, err, "scale and offset must be finite floats");
    if (f->fed != TENSOR_F32 && (f->scale != 1 || f->offset != 0) &&
        (f->scale != 0 || f->offset != 0))
        return bad_feature(f, err, "scale and offset need a float32 input");
    if (f->length_of != NULL && (f->stored != TENSOR_I64 || elements != 1))
        return bad_feature(f, err, "a length is one int64");
    if (!data_is_image(f))
        return 0;
    return check_image(f, err) < 0 ? ERR_INPUT : check_steps(f, training, err);
}

/* The steps that are done in this set. */
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

/* false: out of memory. */
static bool copy_text(struct data_set *s, const char **text)
{
    if (*text == NULL)
        return true;
    *text = arena_strdup(&s->mem, *text);
    return *text != NULL;
}

static int find_lengths(struct data_set *s, struct err *err)
{
    for (uint32_t i = 0; i < s->n_features; i++) {
        const char *of = s->features[i].length_of;
        uint32_t k = 0;

        s->length_of[i] = UINT32_MAX;
        if (of == NULL)
            continue;
        while (k < s->n_features && (k == i || strcmp(s->features[k].name, of) != 0))
            k++;
        if (k == s->n_features || s->features[k].length_of != NULL || s->features[k].encoded)
            return bad_feature(&s->features[i], err, "length_of names no other list");
        s->length_of[i] = k;
    }
    return 0;
}

static int copy_features(struct data_set *s, const struct data_opts *opts, struct err *err)
{
    uint32_t n = opts->n_features;
    int rc = 0;

    CHECK(n > 0);
    s->n_features = n;
    s->features = arena_array(&s->mem, n, sizeof(*s->features));
    s->steps = arena_array(&s->mem, n, sizeof(*s->steps));
    s->elements = arena_array(&s->mem, n, sizeof(*s->elements));
    s->stored_at = arena_array(&s->mem, n, sizeof(*s->stored_at));
    s->stored_size = arena_array(&s->mem, n, sizeof(*s->stored_size));
    s->fed_bytes = arena_array(&s->mem, n, sizeof(*s->fed_bytes));
    s->length_of = arena_array(&s->mem, n, sizeof(*s->length_of));
    if (s->features == NULL || s->steps == NULL || s->elements == NULL || s->stored_at == NULL ||
        s->stored_size == NULL || s->fed_bytes == NULL || s->length_of == NULL)
        return err_set(err, ERR_NOMEM, "features: out of memory");
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        struct data_feature *f = &s->features[i];
        int64_t elements = shape_elements(&opts->features[i].shape);

        if (check_feature(&opts->features[i], elements, s->training, err) < 0)
            return ERR_INPUT;
        *f = opts->features[i];
        s->elements[i] = (size_t)elements;
        s->fed_bytes[i] = s->elements[i] * tensor_dtype_bytes(f->fed);
        s->stored_at[i] = s->stored_bytes;
        s->stored_size[i] = f->encoded ? sizeof(struct data_bytes)
                                       : s->elements[i] * tensor_dtype_bytes(f->stored);
        s->stored_bytes += (s->stored_size[i] + 7) & ~(size_t)7;
        rc = copy_steps(s, i, err);
        if (rc == 0 && !(copy_text(s, &f->name) && copy_text(s, &f->length_of) &&
                         copy_text(s, &f->column)))
            rc = err_set(err, ERR_NOMEM, "features: out of memory");
    }
    if (rc == 0)
        rc = find_lengths(s, err);
    return rc == 0 && s->source->check != NULL ? s->source->check(s, err) : rc;
}

void data_fill_up(const struct data_feature *f, void *stored, size_t have, size_t n)
{
    int64_t i64 = (int64_t)f->pad_value;
    int32_t i32 = (int32_t)i64;
    float f32 = (float)f->pad_value;

    for (size_t i = have; i < n; i++)
        switch (f->stored) {
        case TENSOR_U8:
            ((uint8_t *)stored)[i] = (uint8_t)i64;
            break;
        case TENSOR_F32:
            memcpy((uint8_t *)stored + 4 * i, &f32, 4);
            break;
        case TENSOR_I32:
            memcpy((uint8_t *)stored + 4 * i, &i32, 4);
            break;
        default:
            CHECK(f->stored == TENSOR_I64);
            memcpy((uint8_t *)stored + 8 * i, &i64, 8);
        }
}

/* ---- files ---- */

/* Half of what the process may open, so that sockets and checkpoints never lack. */
static uint32_t open_max(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur / 2 > 65536)
        return 65536;
    return (uint32_t)(limit.rlim_cur / 2);
}

/* Encoded images are kept as they are, so together they take about what the files do. */
static uint64_t encoded_bytes(const struct data_set *s)
{
    uint64_t bytes = 0;
    bool any = false;

    for (uint32_t i = 0; i < s->n_features; i++)
        any = any || s->features[i].encoded;
    for (uint32_t i = 0; any && i < s->n_files; i++)
        bytes += s->files[i].bytes;
    return bytes;
}

static int make_cache(struct data_set *s, struct err *err)
{
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    char need[32], have[32];
    size_t bytes;

    if (__builtin_mul_overflow(s->n_records, s->stored_bytes + 1, &bytes) ||
        __builtin_add_overflow(bytes, encoded_bytes(s), &bytes))
        bytes = SIZE_MAX;
    if (bytes <= machine) { /* pages are taken as samples come */
        s->cache = calloc(s->n_records, s->stored_bytes);
        s->cached = calloc(s->n_records, sizeof(*s->cached));
        if (s->cache != NULL && s->cached != NULL)
            return 0;
    }
    text_bytes(need, sizeof(need), bytes);
    text_bytes(have, sizeof(have), machine);
    return err_set(err, ERR_NOMEM,
                   "%" PRIu64 " samples of %zu bytes need %s of memory, and this machine has %s: "
                   "do not cache them",
                   s->n_records, s->stored_bytes, need, have);
}

/* ---- the set ---- */

int data_open(const struct data_opts *opts, struct data_set **out, struct err *err)
{
    struct data_set *s = calloc(1, sizeof(*s));
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "data set: out of memory");
    s->open_max = open_max();
    s->source = data_source_of(opts->format);
    s->n_members = s->source->has_members ? opts->n_features : 1;
    s->csv_header = opts->csv_header;
    s->csv_delimiter = opts->csv_delimiter != 0 ? opts->csv_delimiter : ',';
    s->training = opts->training;
    s->skip_bad = opts->skip_bad;
    s->patience = (struct data_patience){ .deadline_ms = opts->deadline_ms,
                                          .cancel = opts->cancel,
                                          .on_trouble = opts->on_trouble,
                                          .arg = opts->arg };
    rc = copy_features(s, opts, err);
    if (rc == 0)
        rc = data_find_files(s, opts, err);
    if (rc == 0)
        rc = data_index(opts, s, err);
    if (rc == 0)
        rc = data_number_records(s, err);
    if (rc == 0 && opts->cache_memory)
        rc = make_cache(s, err);
    s->patience.cancel = NULL; /* it was for opening */
    if (rc < 0) {
        data_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

static void free_cache(struct data_set *s)
{
    for (uint32_t i = 0; s->cache != NULL && i < s->n_features; i++) {
        if (!s->features[i].encoded)
            continue;
        for (uint64_t r = 0; r < s->n_records; r++) {
            struct data_bytes b;

            memcpy(&b, s->cache + r * s->stored_bytes + s->stored_at[i], sizeof(b));
            free((void *)(uintptr_t)b.at); /* NULL where nothing came yet */
        }
    }
    free(s->cache);
    free(s->cached);
}

void data_free(struct data_set *s)
{
    if (s == NULL)
        return;
    free_cache(s);
    data_free_files(s);
    arena_fini(&s->mem);
    free(s);
}

uint64_t data_records(const struct data_set *s)
{
    return s->n_records;
}

/* Of .npy the first member of each group stands for all. */
uint32_t data_files(const struct data_set *s)
{
    return s->n_files / s->n_members;
}

const char *data_file_name(const struct data_set *s, uint32_t i, uint64_t *records)
{
    const struct data_file *f = &s->files[i * s->n_members];

    *records = f->n_records;
    return f->origin;
}

uint64_t data_skipped(const struct data_set *s)
{
    return atomic_load(&s->n_skipped);
}

const char *data_digest(const struct data_set *s)
{
    return s->digest;
}

uint64_t data_steps_per_epoch(const struct data_set *s, uint32_t global_batch, bool pad)
{
    struct data_order order = {
        .n = s->n_records, .global_batch = global_batch, .lanes = 1, .pad = pad
    };

    return data_order_steps(&order);
}

int data_sample(struct data_set *s, uint64_t record, void *const *out, struct err *err)
{
    struct data_draw draw = { .record = record };
    struct data_decoder *d;
    uint64_t used;
    int rc;

    CHECK(record < s->n_records);
    rc = data_decoder_new(s, &d, err);
    if (rc < 0)
        return rc;
    rc = data_decode(d, &draw, record, out, 0, &used, err);
    data_decoder_free(d);
    return rc;
}

int data_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, struct err *err)
{
    sigset_t all, before;
    int errnum;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errnum = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return errnum != 0 ? err_sys(err, errnum, "start a thread") : 0;
}
