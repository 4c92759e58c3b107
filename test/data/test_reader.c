#include "data/kit.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/fault.h"
#include "data/order.h"
#include "harness/wait.h"

static struct data_reader_opts options(uint64_t steps, uint32_t threads)
{
    return (struct data_reader_opts){ .seed = 9, .shuffle = true, .global_batch = 12, .lanes = 3,
                                      .n_lanes = 3, .first_step = 1, .last_step = steps,
                                      .threads = threads, .prefetch = 4 };
}

static struct data_reader *open_reader(struct data_set *s, const struct data_reader_opts *opts)
{
    struct data_reader *r = NULL;
    struct err err;

    if (data_reader_open(s, opts, &r, &err) < 0)
        fail_msg("%s", err.text);
    return r;
}

static const struct data_batch *next(struct data_reader *r)
{
    const struct data_batch *b = NULL;
    struct err err;

    if (data_next(r, &b, &err) < 0)
        fail_msg("%s", err.text);
    return b;
}

/* Reads the whole stream and compares each value with the expected order and record. */
static void check_stream(struct data_set *s, const struct data_reader_opts *o)
{
    struct data_order order = { .n = data_samples(s), .seed = o->seed,
                                .global_batch = o->global_batch, .lanes = o->lanes,
                                .shuffle = o->shuffle, .pad = o->pad };
    uint32_t lane_batch = o->global_batch / o->lanes;
    struct data_reader *r = open_reader(s, o);

    for (uint64_t step = o->first_step; step <= o->last_step; step++)
        for (uint32_t l = o->first_lane; l < o->first_lane + o->n_lanes; l++) {
            const struct data_batch *b = next(r);
            const float *image;
            const int64_t *id;
            uint32_t n_real = 0;

            assert_non_null(b);
            assert_int_equal(b->step, step);
            assert_int_equal(b->lane, l);
            image = b->features[0];
            id = b->features[1];
            assert_int_equal((uintptr_t)image % 64, 0);
            for (uint32_t i = 0; i < lane_batch; i++) {
                struct data_pick pick = data_order_pick(&order, step, l, i);

                assert_int_equal(b->samples[i], pick.sample);
                assert_int_equal(id[i], pick.sample);
                assert_true(b->weights[i] == (pick.real ? 1.0f : 0.0f));
                n_real += pick.real;
                for (size_t k = 0; k < KIT_PIXELS; k++)
                    assert_true(image[i * KIT_PIXELS + k] ==
                                (float)kit_pixel(pick.sample, k) * 0.5f - 1.0f);
            }
            assert_int_equal(b->n_real, n_real);
            data_release(r);
        }
    assert_null(next(r));
    assert_null(next(r));
    data_reader_close(r);
}

static char *two_files(uint64_t n)
{
    char *folder = kit_folder();

    kit_file(folder, "a.tfrecord", 0, n / 3);
    kit_file(folder, "b.tfrecord", n / 3, n - n / 3);
    return folder;
}

static void reader_stream_is_independent_of_threads_and_prefetch(void **state)
{
    static const uint32_t threads[] = { 0, 1, 3 };
    char *folder = two_files(100);
    struct data_set *s = kit_open(folder, NULL, false), *cached = kit_open(folder, NULL, true);

    (void)state;
    for (size_t t = 0; t < 3; t++)
        for (uint32_t kind = 0; kind < 8; kind++)
            for (uint32_t prefetch = 1; prefetch <= 9; prefetch += 4) {
                struct data_reader_opts o = options(20, threads[t]); /* about two epochs */

                o.shuffle = kind & 1;
                o.pad = kind & 2;
                o.prefetch = prefetch;
                check_stream(kind & 4 ? cached : s, &o);
            }
    data_free(s);
    data_free(cached);
    kit_remove(folder);
}

static void reader_of_some_lanes_from_a_step_delivers_its_part(void **state)
{
    char *folder = two_files(50);
    struct data_set *s = kit_open(folder, NULL, false);

    (void)state;
    for (uint64_t first = 1; first <= 12; first++)
        for (uint32_t lane = 0; lane < 3; lane++) {
            struct data_reader_opts o = options(13, lane);

            o.first_step = first;
            o.first_lane = lane;
            o.n_lanes = 3 - lane;
            o.pad = true;
            check_stream(s, &o);
        }
    data_free(s);
    kit_remove(folder);
}

static void reader_large_batch_is_divided_among_threads(void **state)
{
    char *folder = two_files(1000);
    struct data_set *s = kit_open(folder, NULL, false);
    struct data_reader_opts o = options(5, 3);

    (void)state;
    o.global_batch = 411;
    o.prefetch = 1;
    check_stream(s, &o);
    o.shuffle = false;
    check_stream(s, &o);
    data_free(s);
    kit_remove(folder);
}

static void reader_with_last_step_before_the_first_is_empty(void **state)
{
    char *folder = two_files(50);
    struct data_set *s = kit_open(folder, NULL, false);
    struct data_reader_opts o = options(3, 2);
    struct data_reader *r;

    (void)state;
    o.first_step = 4;
    r = open_reader(s, &o);
    assert_null(next(r));
    data_reader_close(r);
    data_free(s);
    kit_remove(folder);
}

static void flip(const char *path, uint64_t at)
{
    int fd = open(path, O_RDWR);
    struct timespec times[2] = { { 0, UTIME_OMIT }, { 0, 0 } };
    struct stat st;
    uint8_t byte;

    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    times[1] = st.st_mtim; /* like a fault of the disk */
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
}

static void reader_bad_record_is_an_error_at_its_position(void **state)
{
    char *folder = two_files(60), *path = fs_join(folder, "b.tfrecord"), place[64];
    struct buf before = { 0 };

    (void)state;
    for (uint64_t i = 20; i < 37; i++)
        kit_record(&before, i);
    snprintf(place, sizeof(place), "record 17 at offset %zu", before.len);
    for (uint32_t threads = 0; threads <= 3; threads++) {
        struct data_set *s = kit_open(folder, NULL, threads == 2);
        struct data_reader_opts o = options(5, threads);
        const struct data_batch *b;
        struct data_reader *r;
        struct err err;

        flip(path, before.len + 20);
        o.shuffle = false;
        r = open_reader(s, &o);
        for (int k = 0; k < 9; k++) { /* record 37 is in step 4, lane 0: positions 36 .. 39 */
            b = next(r);
            assert_int_equal(b->samples[0], k * 4);
            data_release(r);
        }
        for (int again = 0; again < 2; again++) { /* the error repeats */
            assert_int_equal(data_next(r, &b, &err), ERR_CORRUPT);
            assert_text(err, "step 4, lane 0");
            assert_text(err, "b.tfrecord'");
            assert_text(err, place);
            assert_text(err, "checksum");
        }
        data_reader_close(r);
        data_free(s);
        flip(path, before.len + 20);
    }
    buf_fini(&before);
    free(path);
    kit_remove(folder);
}

static void reader_reports_the_first_of_several_bad_samples(void **state)
{
    char *folder = kit_folder();
    struct buf b = { 0 }, features = { 0 };
    struct data_set *s;

    (void)state;
    for (uint64_t i = 0; i < 64; i++) {
        if (i == 9 || i == 33 || i == 60)
            tfrecord_append(&b, "", 0); /* an Example without features */
        else
            kit_record(&b, i);
    }
    kit_write(folder, "a.tfrecord", b.data, b.len);
    s = kit_open(folder, NULL, false);
    for (int i = 0; i < 20; i++) {
        struct data_reader_opts o = options(1, 3);
        const struct data_batch *batch;
        struct data_reader *r;
        struct err err;

        o.shuffle = false;
        o.global_batch = 64;
        o.lanes = o.n_lanes = 1;
        r = open_reader(s, &o);
        assert_int_equal(data_next(r, &batch, &err), ERR_INPUT);
        assert_text(err, "record 9 at");
        assert_text(err, "'image'");
        data_reader_close(r);
    }
    data_free(s);
    buf_fini(&features);
    buf_fini(&b);
    kit_remove(folder);
}

/* The file is truncated or extended, after it was opened and before the first read. */
static void reader_file_changed_during_the_run_is_named(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        char *folder = two_files(60), *path = fs_join(folder, "b.tfrecord");
        struct data_set *s = kit_open(folder, NULL, false);
        struct data_reader_opts o = options(5, 0);
        const struct data_batch *b;
        struct data_reader *r;
        struct err err;
        int rc;

        o.shuffle = false;
        r = open_reader(s, &o);
        if (kind & 1)
            for (int k = 0; k < 7; k++) { /* until the file is opened */
                (void)next(r);
                data_release(r);
            }
        if (kind & 2)
            assert_int_equal(truncate(path, 3000), 0);
        else
            kit_file(folder, "b.tfrecord", 0, 61); /* rewritten in place */
        clock_fake(clock_ns() + 30 * 1000 * 1000); /* CHECK_NS passes */
        while ((rc = data_next(r, &b, &err)) == 0 && b != NULL)
            data_release(r);
        clock_fake(UINT64_MAX);
        assert_int_equal(rc, ERR_CHANGED);
        assert_text(err, "b.tfrecord'");
        assert_text(err, "changed");
        data_reader_close(r);
        data_free(s);
        free(path);
        kit_remove(folder);
    }
}

/* The file is read as batches are requested. Its time changes, and in one case also a byte of the
 * first block. */
static void reader_file_with_a_new_time_is_read_unless_its_content_changed(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        char *folder = two_files(60), *path = fs_join(folder, "b.tfrecord");
        struct data_set *s = kit_open(folder, NULL, false);
        struct data_reader_opts o = options(5, 0);
        const struct data_batch *b;
        struct data_reader *r;
        struct err err = { .text = "" };
        int rc;

        o.shuffle = false;
        r = open_reader(s, &o);
        if (kind & 1)
            for (int k = 0; k < 7; k++) { /* until the file is opened */
                (void)next(r);
                data_release(r);
            }
        if (kind & 2)
            flip(path, 0);
        assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){ { 1, 0 }, { 1, 0 } }, 0),
                         0);
        clock_fake(clock_ns() + 30 * 1000 * 1000); /* CHECK_NS passes */
        while ((rc = data_next(r, &b, &err)) == 0 && b != NULL)
            data_release(r);
        clock_fake(UINT64_MAX);
        assert_int_equal(rc, kind & 2 ? ERR_CHANGED : 0);
        if (kind & 2)
            assert_text(err, "with other content: restart");
        data_reader_close(r);
        data_free(s);
        free(path);
        kit_remove(folder);
    }
}

/* Cancels while the main thread waits: for a thread of the reader, or in the read itself. */
struct canceler {
    struct data_reader *reader;
    bool releases; /* the main thread is held in the read */
};

static void *cancel_wait(void *arg)
{
    const struct canceler *c = arg;

    WAIT_UNTIL(fault_fired() && wait_is_asleep(getpid(), getpid()));
    data_reader_cancel(c->reader);
    if (c->releases)
        fault_arm(NULL, NULL);
    return NULL;
}

static void reader_cancel_ends_a_wait(void **state)
{
    char *folder = two_files(60);
    struct data_set *s = kit_open(folder, NULL, false);

    (void)state;
    for (uint32_t threads = 0; threads <= 2; threads++) {
        struct data_reader_opts o = options(1000, threads);
        const struct data_batch *b;
        struct data_reader *r;
        struct canceler c;
        pthread_t thread;
        struct err err;
        int rc;

        assert_int_equal(fault_arm("data.read=hold@2+", NULL), 0);
        r = open_reader(s, &o);
        c = (struct canceler){ r, threads == 0 };
        assert_int_equal(pthread_create(&thread, NULL, cancel_wait, &c), 0);
        while ((rc = data_next(r, &b, &err)) == 0)
            data_release(r);
        assert_int_equal(rc, ERR_CANCELED);
        pthread_join(thread, NULL);
        assert_int_equal(fault_arm(NULL, NULL), 0);
        assert_true(data_wait_ns(r) > 0);
        data_reader_close(r);
    }
    data_free(s);
    kit_remove(folder);
}

static void ready_batch_is_delivered_without_a_wait(void **state)
{
    char *folder = two_files(60);
    struct data_set *s = kit_open(folder, NULL, false);

    (void)state;
    assert_int_equal(fault_arm("data.read=delay:5@1+", NULL), 0);
    for (uint32_t threads = 0; threads <= 2; threads++) {
        struct data_reader_opts o = options(10, threads);
        struct data_reader *r = open_reader(s, &o);
        const struct data_batch *b = NULL;
        struct err err;

        do {
            uint64_t before;

            WAIT_UNTIL(data_is_ready(r));
            before = data_wait_ns(r);
            assert_int_equal(data_next(r, &b, &err), 0);
            assert_true(threads == 0 || data_wait_ns(r) == before);
            if (b != NULL)
                data_release(r);
        } while (b != NULL);
        data_reader_cancel(r);
        assert_true(data_is_ready(r)); /* data_next() fails at once */
        data_reader_close(r);
    }
    assert_int_equal(fault_arm(NULL, NULL), 0);
    data_free(s);
    kit_remove(folder);
}

static void reader_can_be_closed_at_any_time(void **state)
{
    char *folder = two_files(60);
    struct data_set *s = kit_open(folder, NULL, true);

    (void)state;
    for (int taken = 0; taken < 20; taken++) {
        struct data_reader_opts o = options(1000, 3);
        struct data_reader *r = open_reader(s, &o);

        for (int k = 0; k < taken; k++) {
            (void)next(r);
            if (k + 1 < taken) /* the last batch is not released */
                data_release(r);
        }
        data_reader_close(r);
    }
    data_reader_close(NULL);
    data_free(s);
    data_free(NULL);
    kit_remove(folder);
}

/* Readers of several replicas share one set, and its cache. */
struct replica {
    struct data_set *s;
    struct data_reader_opts opts;
};

static void *run_replica(void *arg)
{
    struct replica *p = arg;

    check_stream(p->s, &p->opts);
    return NULL;
}

static void readers_of_several_replicas_share_a_set_and_its_cache(void **state)
{
    char *folder = two_files(97);
    struct data_set *s = kit_open(folder, NULL, true);
    struct replica replicas[3];
    pthread_t threads[3];

    (void)state;
    for (uint32_t l = 0; l < 3; l++) {
        replicas[l] = (struct replica){ s, options(60, l) };
        replicas[l].opts.first_lane = l;
        replicas[l].opts.n_lanes = 1;
        assert_int_equal(pthread_create(&threads[l], NULL, run_replica, &replicas[l]), 0);
    }
    for (uint32_t l = 0; l < 3; l++)
        pthread_join(threads[l], NULL);
    data_free(s);
    kit_remove(folder);
}

static void reader_with_a_full_cache_reads_no_file(void **state)
{
    char *folder = two_files(48);
    struct data_set *s = kit_open(folder, NULL, true);
    struct data_reader_opts o = options(4, 2); /* one epoch */

    (void)state;
    check_stream(s, &o);
    assert_int_equal(fault_arm("*@1000000", NULL), 0);
    o.last_step = 40;
    check_stream(s, &o);
    assert_int_equal(fault_n_passages(), o.threads); /* only the starts of the threads */
    assert_int_equal(fault_arm(NULL, NULL), 0);
    data_free(s);
    kit_remove(folder);
}

/* Records in file order are read with one read per range, not one per record. */
static void reader_reads_adjacent_records_together(void **state)
{
    char *folder = two_files(96);
    struct data_set *s = kit_open(folder, NULL, false);
    struct data_reader_opts o = options(1, 0);

    (void)state;
    o.shuffle = false;
    o.global_batch = 96;
    o.lanes = o.n_lanes = 1;
    assert_int_equal(fault_arm("data.read@1000000", NULL), 0);
    check_stream(s, &o);
    assert_in_range(fault_n_passages(), 4, 4); /* two files, each opened and read once */
    o.shuffle = true;
    assert_int_equal(fault_arm("data.read@1000000", NULL), 0);
    check_stream(s, &o);
    assert_in_range(fault_n_passages(), 2, 40); /* samples of a batch with small gaps, too */
    o.global_batch = o.lanes = o.n_lanes = 1;
    o.last_step = 96;
    assert_int_equal(fault_arm("data.read@1000000", NULL), 0);
    check_stream(s, &o);
    assert_true(fault_n_passages() > 80);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    data_free(s);
    kit_remove(folder);
}

/* A set of 40 MB and a reader with slots of 2 MB: the process grows by little more than the
 * slots. */
static void reader_memory_is_bounded_by_the_prefetch(void **state)
{
    enum { RECORD_BYTES = 100000, RECORDS = 400 };
    struct data_feature f = { .name = "x", .stored = TENSOR_U8, .shape = { 1, { RECORD_BYTES } },
                              .fed = TENSOR_F32, .scale = 1 };
    char *folder = kit_folder(), *glob = fs_join(folder, "*");
    struct data_opts opts = { .glob = glob, .features = &f, .n_features = 1 };
    struct data_reader_opts o = options(RECORDS, 2);
    struct buf features = { 0 }, example = { 0 }, file = { 0 };
    uint8_t *x = calloc(1, RECORD_BYTES);
    struct rusage before, after;
    struct data_reader *r;
    struct data_set *s;

    (void)state;
    kit_bytes(&features, "x", x, RECORD_BYTES);
    kit_member(&example, 1, features.data, features.len);
    for (int i = 0; i < RECORDS; i++)
        tfrecord_append(&file, example.data, example.len);
    kit_write(folder, "a", file.data, file.len);
    buf_fini(&features);
    buf_fini(&example);
    buf_fini(&file);
    o.global_batch = o.lanes = o.n_lanes = 1;
    assert_int_equal(data_open(&opts, &s, NULL), 0);
    getrusage(RUSAGE_SELF, &before);
    r = open_reader(s, &o);
    while (next(r) != NULL)
        data_release(r);
    getrusage(RUSAGE_SELF, &after);
    /* The peak includes the file built above, so it must not have moved at all. */
#if defined(__SANITIZE_ADDRESS__) /* which delays the reuse of freed memory */
    assert_true(after.ru_maxrss - before.ru_maxrss < 16 * 1024);
#else
    assert_true(after.ru_maxrss - before.ru_maxrss < 4 * 1024);
#endif
    data_reader_close(r);
    data_free(s);
    free(x);
    free(glob);
    kit_remove(folder);
}

/* All conversions of stored to fed types, with scale and offset in float. */
static void reader_every_conversion_returns_the_written_value(void **state)
{
#define ROW(name_, stored_, fed_, scale_, offset_)                                                 \
    { .name = name_, .stored = stored_, .shape = { 1, { 2 } }, .fed = fed_, .scale = scale_,       \
      .offset = offset_ }
    static const struct data_feature features[] = {
        ROW("u", TENSOR_U8, TENSOR_F32, 0.1, 0.3),
        ROW("u", TENSOR_U8, TENSOR_I64, 1, 0),
        ROW("u", TENSOR_U8, TENSOR_I32, 1, 0),
        ROW("f", TENSOR_F32, TENSOR_F32, 1, 0),
        ROW("f", TENSOR_F32, TENSOR_F32, 3, 0.7),
        ROW("i", TENSOR_I64, TENSOR_F32, 0.5, 1),
        ROW("i", TENSOR_I64, TENSOR_I64, 0, 0),
        ROW("i", TENSOR_I64, TENSOR_I32, 1, 0),
        ROW("i", TENSOR_I32, TENSOR_F32, 0.5, 1),
        ROW("i", TENSOR_I32, TENSOR_I64, 1, 0),
        ROW("i", TENSOR_I32, TENSOR_I32, 1, 0),
    };
    enum { N = sizeof(features) / sizeof(*features) };
    static const float fs[] = { -0.0f, 1.25f };
    static const int64_t is[] = { -7, 2147483647 };
    static const uint8_t us[] = { 3, 255 };
    char *folder = kit_folder(), *glob = fs_join(folder, "*");
    struct buf b = { 0 }, example = { 0 }, file = { 0 };
    int64_t room[N][2];
    void *out[N];

    (void)state;
    kit_bytes(&b, "u", us, 2);
    kit_floats(&b, "f", fs, 2);
    kit_ints(&b, "i", is, 2);
    kit_member(&example, 1, b.data, b.len);
    tfrecord_append(&file, example.data, example.len);
    kit_write(folder, "a", file.data, file.len);
    for (int i = 0; i < N; i++)
        out[i] = room[i];
    for (int cached = 0; cached < 2; cached++) {
        struct data_opts opts = { .glob = glob,
                                  .features = features,
                                  .n_features = N,
                                  .origin.cache = cached ? DATA_CACHE_MEMORY : DATA_CACHE_NONE };
        struct data_set *s;
        struct err err;

        if (data_open(&opts, &s, &err) < 0)
            fail_msg("%s", err.text);
        for (int pass = 0; pass < 2; pass++) {
            memset(room, 0xee, sizeof(room));
            if (data_sample(s, 0, out, &err) < 0)
                fail_msg("%s", err.text);
            for (int k = 0; k < 2; k++) {
                assert_true(((float *)out[0])[k] == (float)us[k] * 0.1f + 0.3f);
                assert_int_equal(((int64_t *)out[1])[k], us[k]);
                assert_int_equal(((int32_t *)out[2])[k], us[k]);
                assert_true(((float *)out[4])[k] == fs[k] * 3.0f + 0.7f);
                assert_true(((float *)out[5])[k] == (float)is[k] * 0.5f + 1.0f);
                assert_int_equal(((int64_t *)out[6])[k], is[k]);
                assert_int_equal(((int32_t *)out[7])[k], is[k]);
                assert_true(((float *)out[8])[k] == (float)is[k] * 0.5f + 1.0f);
                assert_int_equal(((int64_t *)out[9])[k], is[k]);
                assert_int_equal(((int32_t *)out[10])[k], is[k]);
            }
            assert_memory_equal(out[3], fs, sizeof(fs)); /* including the sign of zero */
        }
        data_free(s);
    }
    buf_fini(&b);
    buf_fini(&example);
    buf_fini(&file);
    free(glob);
    kit_remove(folder);
}

static void reader_value_out_of_range_of_the_batch_type_is_refused(void **state)
{
    static const struct data_feature f = ROW("i", TENSOR_I64, TENSOR_I32, 1, 0);
    char *folder = kit_folder(), *glob = fs_join(folder, "*");
    struct data_opts opts = { .glob = glob, .features = &f, .n_features = 1 };
    struct buf b = { 0 }, example = { 0 }, file = { 0 };
    struct data_set *s;
    int32_t out[2];
    struct err err;

    (void)state;
    kit_ints(&b, "i", (int64_t[]){ 1, -INT64_C(2147483649) }, 2);
    kit_member(&example, 1, b.data, b.len);
    tfrecord_append(&file, example.data, example.len);
    kit_write(folder, "a", file.data, file.len);
    assert_int_equal(data_open(&opts, &s, NULL), 0);
    assert_int_equal(data_sample(s, 0, (void *[]){ out }, &err), ERR_INPUT);
    assert_text(err, "record 0 at offset 0");
    assert_text(err, "'i': value 1 is -2147483649, expected an int32");
    data_free(s);
    buf_fini(&b);
    buf_fini(&example);
    buf_fini(&file);
    free(glob);
    kit_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reader_stream_is_independent_of_threads_and_prefetch),
        cmocka_unit_test(reader_of_some_lanes_from_a_step_delivers_its_part),
        cmocka_unit_test(reader_large_batch_is_divided_among_threads),
        cmocka_unit_test(reader_with_last_step_before_the_first_is_empty),
        cmocka_unit_test(reader_bad_record_is_an_error_at_its_position),
        cmocka_unit_test(reader_reports_the_first_of_several_bad_samples),
        cmocka_unit_test(reader_file_changed_during_the_run_is_named),
        cmocka_unit_test(reader_file_with_a_new_time_is_read_unless_its_content_changed),
        cmocka_unit_test(reader_cancel_ends_a_wait),
        cmocka_unit_test(ready_batch_is_delivered_without_a_wait),
        cmocka_unit_test(reader_can_be_closed_at_any_time),
        cmocka_unit_test(readers_of_several_replicas_share_a_set_and_its_cache),
        cmocka_unit_test(reader_with_a_full_cache_reads_no_file),
        cmocka_unit_test(reader_reads_adjacent_records_together),
        cmocka_unit_test(reader_memory_is_bounded_by_the_prefetch),
        cmocka_unit_test(reader_every_conversion_returns_the_written_value),
        cmocka_unit_test(reader_value_out_of_range_of_the_batch_type_is_refused),
    };

    return cmocka_run_group_tests_name("data/reader", tests, NULL, NULL);
}
