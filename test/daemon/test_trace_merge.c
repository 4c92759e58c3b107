#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "daemon/trace_merge.h"

#define BEGIN "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
#define NAME "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":7,\"tid\":0,\"args\":{\"name\":\"worker 7\"}}"
#define SPAN(name, ts) "{\"ph\":\"X\",\"name\":\"" name "\",\"cat\":\"Conv\",\"pid\":7,\"tid\":1,\"ts\":" ts \
                       ",\"dur\":3.500,\"args\":{\"step\":4,\"direction\":\"forward\"}}"
#define END "\n]}\n"

/* Merges `text` in parts of `part` bytes. */
static int merge(const char *text, size_t part, struct trace_merge *m, struct buf *out,
                 struct err *err)
{
    int rc = 0, end;

    for (size_t at = 0, n = strlen(text); rc == 0 && at < n; at += part)
        rc = trace_merge_add(m, text + at, n - at < part ? n - at : part, out, err);
    end = trace_merge_end(m, rc < 0 ? NULL : err);
    return rc < 0 ? rc : end;
}

static void merge_in_parts_of_any_size_changes_only_pid_and_time(void **state)
{
    static const char text[] = BEGIN NAME
        ",\n" SPAN("/conv1/\\\"ts\\\":1.000", "2000000.250") ",\n" SPAN("last", "2000003.999") END;
    static const char expected[] =
        ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":2,\"tid\":0,\"args\":{\"name\":\"worker 7\"}}"
        ",\n{\"ph\":\"X\",\"name\":\"/conv1/\\\"ts\\\":1.000\",\"cat\":\"Conv\",\"pid\":2,\"tid\":1,\"ts\":1999999.000"
        ",\"dur\":3.500,\"args\":{\"step\":4,\"direction\":\"forward\"}}"
        ",\n{\"ph\":\"X\",\"name\":\"last\",\"cat\":\"Conv\",\"pid\":2,\"tid\":1,\"ts\":2000002.749"
        ",\"dur\":3.500,\"args\":{\"step\":4,\"direction\":\"forward\"}}";

    (void)state;
    for (size_t part = 1; part < sizeof(text); part += 13) {
        struct trace_merge m = { .pid = 2, .shift_ns = -1250 };
        struct buf out = { 0 };
        struct err err = { 0 };

        assert_int_equal(merge(text, part, &m, &out, &err), 0);
        assert_string_equal(out.data, expected);
        buf_fini(&out);
    }
}

static void merge_of_another_file_is_refused(void **state)
{
    static const struct {
        const char *text, *reason;
    } rows[] = {
        { "", "incomplete" },
        { BEGIN NAME, "incomplete" },
        { BEGIN NAME ",\n" SPAN("a", "2000000.250") "\n", "incomplete" },
        { BEGIN NAME END "more", "incomplete" },
        { BEGIN NAME END "more\n", "'more' is not an event" },
        { "[\n" NAME END, "'[' is not an event" },
        { BEGIN "{}" END, "'{}' is not an event" },
        { BEGIN "\n" END, "'' is not an event" },
        { BEGIN SPAN("a", "12") END, "is not an event" },
        { BEGIN SPAN("a", "12.3") END, "is not an event" },
        { BEGIN SPAN("a", "-1.000") END, "is not an event" },
        { BEGIN SPAN("a", "99999999999999999999.000") END, "is not an event" },
        { BEGIN SPAN("a", "1.000") END, "older than the clock of the first task" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct trace_merge m = { .shift_ns = -5000 };
        struct buf out = { 0 };
        struct err err = { 0 };

        assert_int_equal(merge(rows[i].text, 1000, &m, &out, &err), ERR_INPUT);
        if (strstr(err.text, rows[i].reason) == NULL)
            fail_msg("row %zu: %s", i, err.text);
        buf_fini(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merge_in_parts_of_any_size_changes_only_pid_and_time),
        cmocka_unit_test(merge_of_another_file_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
