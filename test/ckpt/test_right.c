/* A writer that loses the right to publish to another task. */
#include "ckpt/kit.h"

#include "base/fault.h"
#include "ckpt/lease.h"

/* The result of may_publish(), by the number of the call (from 1). */
struct permission {
    struct kit_events story; /* first member, for kit_on_event() */
    int asked, no_from, code;
    int hold_at;     /* this call returns when `is_free` is set */
    bool is_held, is_free;
};

static int permission(void *arg, struct err *err)
{
    struct permission *j = arg;

    int asked = __atomic_add_fetch(&j->asked, 1, __ATOMIC_SEQ_CST);

    __atomic_store_n(&j->is_held, asked == j->hold_at, __ATOMIC_SEQ_CST);
    WAIT_UNTIL(asked != j->hold_at || __atomic_load_n(&j->is_free, __ATOMIC_SEQ_CST));
    return j->no_from > 0 && asked >= j->no_from ? err_set(err, j->code, "lease 2: not ours") : 0;
}

static struct ckpt_writer_opts judged_opts(const char *folder, struct permission *j)
{
    struct ckpt_writer_opts opts = kit_opts(folder);

    opts.on_event = kit_on_event;
    opts.may_publish = permission;
    opts.arg = j;
    return opts;
}

/* may_publish() is called at the start of the thread, before the write, before the rename. */
static void writer_refused_discards_its_copy(void **state)
{
    (void)state;
    for (int from = 1; from <= 3; from++) {
        char *folder = kit_folder();
        struct permission j = { .no_from = from, .code = ERR_REFUSED };
        struct ckpt_writer_opts opts = judged_opts(folder, &j);
        struct ckpt_meta one = kit_meta(1), two = kit_meta(2), three = kit_meta(3);
        struct ckpt_writer *w = kit_open(&opts);
        struct err err;

        kit_write(w, &one, 1);
        assert_int_equal(flush_for(w, 20000, &err), ERR_REFUSED);
        assert_text(err.text, "lease 2: not ours");
        kit_write(w, &two, 2);
        assert_int_equal(flush_for(w, 20000, &err), ERR_REFUSED);
        assert_string_equal(j.story.text, "discarded 1, discarded 2 again");
        assert_int_equal(kit_count(folder, ""), 0);
        j.no_from = 0; /* the right is granted again */
        kit_write(w, &three, 3);
        kit_flush(w);
        ckpt_writer_close(w);
        assert_int_equal(kit_count(folder, ""), 1);
        kit_remove(folder);
    }
}

static void writer_with_unknown_right_retries(void **state)
{
    char *folder = kit_folder();
    struct permission j = { .no_from = 3, .code = ERR_IO };
    struct ckpt_writer_opts opts = judged_opts(folder, &j);
    struct ckpt_meta one = kit_meta(1);
    struct ckpt_writer *w;
    struct err err;

    (void)state;
    opts.retry_ms = 100000;
    w = kit_open(&opts);
    kit_write(w, &one, 1);
    while (flush_for(w, 10, &err) != ERR_IO)
        assert_int_equal(err.code, ERR_TIMEOUT);
    j.no_from = 0;
    kit_flush(w);
    ckpt_writer_close(w);
    assert_non_null(strstr(j.story.text, "failed 1"));
    assert_non_null(strstr(j.story.text, "written 1"));
    kit_remove(folder);
}

static void writer_refused_with_an_existing_checkpoint_succeeds(void **state)
{
    char *folder = kit_folder();
    struct permission j = { .no_from = 1, .code = ERR_REFUSED };
    struct ckpt_writer_opts opts = judged_opts(folder, &j);
    struct ckpt_meta seven = kit_meta(7);
    struct ckpt_writer *w;

    (void)state;
    kit_save(folder, 6, 6);
    kit_save(folder, 7, 7);
    opts.max_to_keep = 1;
    w = kit_open(&opts);
    kit_write(w, &seven, 7);
    kit_flush(w);
    ckpt_writer_close(w);
    assert_string_equal(j.story.text, "written 7");
    assert_int_equal(kit_count(folder, "step-"), 2); /* nothing is removed without the right */
    kit_remove(folder);
}

/* The calls: start, write, rename. The rename fails because another checkpoint exists, whose
 * comparison takes long. */
static void writer_refused_before_the_exchange_replaces_nothing(void **state)
{
    char *folder = kit_folder();
    struct permission j = { .no_from = 4, .code = ERR_REFUSED };
    struct ckpt_writer_opts opts = judged_opts(folder, &j);
    struct ckpt_meta seven = kit_meta(7);
    struct ckpt_writer *w;
    struct ckpt_info info;
    struct err err;

    (void)state;
    kit_save(folder, 7, 7);
    strcpy(seven.job_digest, "former");
    w = kit_open(&opts);
    WAIT_UNTIL(__atomic_load_n(&j.asked, __ATOMIC_SEQ_CST) > 0);
    kit_write(w, &seven, 1);
    assert_int_equal(flush_for(w, 20000, &err), ERR_REFUSED);
    ckpt_writer_close(w);
    assert_string_equal(j.story.text, "discarded 7");
    assert_int_equal(kit_count(folder, ""), 1);
    assert_int_equal(kit_newest(folder, &info), 7);
    assert_string_equal(info.meta.job_digest, "j0b");
    kit_load(info.path, 7);
    kit_remove(folder);
}

static void writer_that_lost_the_right_removes_nothing(void **state)
{
    char *folder = kit_folder();
    /* start, write, rename, first removal */
    struct permission j = { .no_from = 5, .code = ERR_REFUSED };
    struct ckpt_writer_opts opts = judged_opts(folder, &j);
    struct ckpt_meta four = kit_meta(4);
    struct ckpt_writer *w;

    (void)state;
    for (uint64_t step = 1; step <= 3; step++)
        kit_save(folder, step, step);
    opts.max_to_keep = 1;
    w = kit_open(&opts);
    WAIT_UNTIL(__atomic_load_n(&j.asked, __ATOMIC_SEQ_CST) > 0);
    kit_write(w, &four, 4);
    kit_flush(w);
    ckpt_writer_close(w);
    assert_string_equal(j.story.text, "written 4, removed 1");
    kit_remove(folder);
}

/* The save is abandoned before the write, and before the rename. */
static void abandoned_save_is_not_published_and_the_writer_continues(void **state)
{
    (void)state;
    for (int at = 2; at <= 3; at++) {
        char *folder = kit_folder();
        struct permission j = { .hold_at = at };
        struct ckpt_writer_opts opts = judged_opts(folder, &j);
        struct ckpt_meta one = kit_meta(1), two = kit_meta(2);
        struct ckpt_writer *w = kit_open(&opts);
        struct err err;
        void *staging;

        kit_write(w, &one, 1);
        WAIT_UNTIL(__atomic_load_n(&j.is_held, __ATOMIC_SEQ_CST));
        ckpt_abandon(w);
        assert_int_equal(ckpt_begin(w, &staging, NULL), ERR_EXISTS); /* not stopped yet */
        __atomic_store_n(&j.is_free, true, __ATOMIC_SEQ_CST);
        assert_int_equal(flush_for(w, 20000, &err), ERR_CANCELED);
        assert_int_equal(kit_count(folder, ""), 0);
        kit_write(w, &two, 2);
        kit_flush(w);
        ckpt_abandon(w); /* without a save */
        ckpt_writer_close(w);
        assert_string_equal(j.story.text, "discarded 1, written 2");
        kit_remove(folder);
    }
}

static void abandon_while_waiting_or_filling_discards_the_state(void **state)
{
    (void)state;
    for (int replaced = 0; replaced < 2; replaced++) {
        char *folder = kit_folder();
        struct kit_events story = { .text = "" };
        struct ckpt_writer_opts opts = kit_opts(folder);
        struct ckpt_meta one = kit_meta(1), two = kit_meta(2);
        struct ckpt_writer *w;
        struct err err;
        void *staging;

        opts.on_event = kit_on_event;
        opts.arg = &story;
        opts.retry_ms = 100000;
        w = kit_open(&opts);
        assert_int_equal(ckpt_begin(w, &staging, NULL), 0);
        ckpt_abandon(w);
        assert_int_equal(fault_arm("ckpt.write@1+", NULL), 0);
        kit_write(w, &one, 1);
        while (flush_for(w, 5, &err) != ERR_IO) /* until the writer waits for a retry */
            assert_int_equal(err.code, ERR_TIMEOUT);
        assert_int_equal(fault_arm(NULL, NULL), 0);
        story.text[0] = '\0';
        ckpt_abandon(w);
        if (!replaced) {
            assert_int_equal(flush_for(w, 20000, &err), ERR_CANCELED);
            assert_string_equal(story.text, "discarded 1");
        }
        kit_write(w, &two, 2); /* not affected by the earlier ckpt_abandon() */
        kit_flush(w);
        ckpt_writer_close(w);
        assert_non_null(strstr(story.text, "written 2"));
        assert_int_equal(kit_count(folder, ""), 1);
        kit_remove(folder);
    }
}

/* ---- with a lease ---- */

static void on_lease(void *arg, const struct lease_state *s)
{
    __atomic_store_n((uint64_t *)arg, s->is_mine ? s->token : 0, __ATOMIC_SEQ_CST);
}

static int lease_may_publish(void *arg, struct err *err)
{
    return lease_check(arg, err);
}

static void writers_of_two_tasks_publish_only_with_the_lease(void **state)
{
    char *folder = kit_folder(), *leases = fs_join(folder, "leases");
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_writer *w[2];
    struct lease *l[2];
    uint64_t mine[2] = { 0, 0 };
    struct ckpt_info info;
    struct err err;

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        struct lease_opts o = { .directory = leases, .rank = i, .name = "a task",
                                .incarnation = 100 + i, .hold_ms = 20000, .watch_ms = 40000,
                                .on_change = on_lease, .arg = &mine[i] };

        assert_int_equal(lease_open(&o, &l[i], &err), 0);
        opts.may_publish = lease_may_publish;
        opts.arg = l[i];
        w[i] = kit_open(&opts);
    }
    for (uint64_t step = 1; step <= 6; step++) { /* the lease alternates between the tasks */
        struct ckpt_meta meta = kit_meta(step);
        uint32_t holder = (uint32_t)step % 2;

        lease_acquire(l[holder], step - 1, &holder, 1);
        WAIT_UNTIL(__atomic_load_n(&mine[holder], __ATOMIC_SEQ_CST) == step);
        kit_write(w[1 - holder], &meta, step);
        assert_int_equal(flush_for(w[1 - holder], 20000, &err), ERR_REFUSED);
        kit_write(w[holder], &meta, step);
        kit_flush(w[holder]);
        assert_int_equal(kit_newest(folder, &info), step);
    }
    for (int i = 0; i < 2; i++) {
        ckpt_writer_close(w[i]);
        lease_close(l[i]);
    }
    kit_check_folder(folder);
    free(leases);
    kit_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writer_refused_discards_its_copy),
        cmocka_unit_test(writer_with_unknown_right_retries),
        cmocka_unit_test(writer_refused_with_an_existing_checkpoint_succeeds),
        cmocka_unit_test(writer_refused_before_the_exchange_replaces_nothing),
        cmocka_unit_test(writer_that_lost_the_right_removes_nothing),
        cmocka_unit_test(abandoned_save_is_not_published_and_the_writer_continues),
        cmocka_unit_test(abandon_while_waiting_or_filling_discards_the_state),
        cmocka_unit_test(writers_of_two_tasks_publish_only_with_the_lease),
    };

    return cmocka_run_group_tests_name("ckpt/right", tests, NULL, NULL);
}
