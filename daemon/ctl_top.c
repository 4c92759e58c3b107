/* ctl_top.c - `trainerctl top`: a live view of the tasks of a group. On a terminal the screen is drawn
 * again in each interval; otherwise each view is printed as plain text. */
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <protobuf-c/protobuf-c.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "daemon/args.h"
#include "daemon/ctl.h"
#include "daemon/ctl_group.h"
#include "daemon/ctl_top_text.h"

static const char clear_rest[] = "\x1b[J", clear_line[] = "\x1b[K", home[] = "\x1b[H",
                  enter[] = "\x1b[?1049h\x1b[?25l", leave[] = "\x1b[?25h\x1b[?1049l";

/* The tasks that can be asked. All know the leader; only the leader knows all. */
struct top {
    struct ctl_group group;  /* of the first reply; [0..n) */
    struct ctl_task asked;   /* the task whose status is shown: the leader if it is known */
    size_t next;             /* of the group, to ask if `asked` fails */
};

static volatile sig_atomic_t is_interrupted;

static void on_signal(int signum)
{
    (void)signum;
    is_interrupted = 1;
}

static int ask(struct top *t, Trainerd__V1__StatusReply **out, struct err *err)
{
    void *reply = NULL;
    int rc = ctl_task_call(&t->asked, "Status", NULL, &trainerd__v1__status_reply__descriptor, NULL,
                           &reply, err);

    *out = reply;
    return rc;
}

static int turn_to(struct top *t, const char *address, struct err *err)
{
    struct ctl_task task = { 0 };
    int rc = ctl_task_open(&task, &t->group.security, address, address, err);

    if (rc < 0)
        return rc;
    ctl_task_close(&t->asked);
    t->asked = task;
    return 0;
}

/* Reads the status of the leader. If the task that was asked before does not answer, the next one of the
 * group is asked in the next round, and the error is returned. */
static int read_status(struct top *t, Trainerd__V1__StatusReply **out, struct err *err)
{
    Trainerd__V1__StatusReply *better;
    int rc = ask(t, out, err);

    if (rc < 0) {
        if (t->group.n > 0 && turn_to(t, t->group.tasks[t->next++ % t->group.n].address, NULL) < 0)
            CHECK(t->asked.caller != NULL); /* the earlier one stays */
        return rc;
    }
    if ((*out)->leader == NULL || strcmp((*out)->state, "following") != 0 ||
        turn_to(t, (*out)->leader->address, NULL) < 0 || ask(t, &better, NULL) < 0)
        return 0;
    protobuf_c_message_free_unpacked(&(*out)->base, NULL);
    *out = better;
    return 0;
}

/* ---- the terminal ---- */

static struct top_size size_of_terminal(void)
{
    struct winsize w;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) < 0 || w.ws_col == 0 || w.ws_row == 0)
        return (struct top_size){ 80, 24 };
    return (struct top_size){ w.ws_col, w.ws_row };
}

/* Draws the text over the one before: no line flickers. */
static void draw(const struct buf *text)
{
    fputs(home, stdout);
    for (const char *line = text->data; line != NULL && *line != '\0';) {
        size_t n = strcspn(line, "\n");

        fwrite(line, 1, n, stdout);
        fputs(clear_line, stdout);
        line += n;
        if (*line == '\n' && *++line != '\0')
            fputs("\r\n", stdout);
    }
    fputs(clear_rest, stdout);
    fflush(stdout);
}

/* Returns false if the user typed q or interrupted the command. */
static bool wait_for_next(uint64_t ms, bool reads_keys)
{
    struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
    char key = 0;

    if (poll(&in, reads_keys ? 1 : 0, (int)ms) > 0 &&
        (read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 'Q'))
        return false;
    return !is_interrupted;
}

/* Keys arrive without Enter and are not shown. Returns whether standard input is a terminal. */
static bool begin_keys(struct termios *before)
{
    struct termios raw;

    if (tcgetattr(STDIN_FILENO, before) < 0)
        return false;
    raw = *before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    return tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
}

/* ---- the command ---- */

/* Shows one view. */
static int show(struct top *t, bool is_screen, struct err *err)
{
    Trainerd__V1__StatusReply *s = NULL;
    struct top_size size = is_screen ? size_of_terminal() : (struct top_size){ 0, 0 };
    struct buf out = { 0 };
    int rc = read_status(t, &s, err);

    if (rc == 0)
        top_text(s, size, &out);
    else if (is_screen)
        buf_printf(&out, "%.*s\n", (int)size.columns, err->text);
    CHECK(!out.failed);
    if (is_screen)
        draw(&out);
    else if (out.len > 0)
        fwrite(out.data, 1, out.len, stdout);
    buf_fini(&out);
    if (s != NULL)
        protobuf_c_message_free_unpacked(&s->base, NULL);
    return fflush(stdout) == 0 ? rc : err_set(err, ERR_IO, "cannot write to standard output");
}

static int run(struct top *t, uint64_t interval_ms, bool once, struct err *err)
{
    const struct sigaction action = { .sa_handler = on_signal };
    bool is_screen = !once && isatty(STDOUT_FILENO) == 1, reads_keys;
    struct termios before;
    int rc;

    if (once)
        return show(t, false, err);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    reads_keys = is_screen && begin_keys(&before);
    fputs(is_screen ? enter : "", stdout);
    do {
        rc = show(t, is_screen, err);
        if (!is_screen && rc < 0)
            fprintf(stderr, "trainerctl: %s\n", err->text);
        if (!is_screen)
            printf("\n");
    } while (!ferror(stdout) && wait_for_next(interval_ms, reads_keys));
    fputs(is_screen ? leave : "", stdout);
    fflush(stdout);
    if (reads_keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &before);
    return 0;
}

int ctl_top(int argc, char **argv)
{
    struct top t = { 0 };
    const char *interval = "1";
    uint64_t seconds = 0;
    bool once = false, asked = false;
    const struct arg table[] = {
        { "once", NULL, NULL, "print one view and exit", NULL, &once },
        { "interval", "SECONDS", NULL, "between two views (1)", &interval, NULL },
        { "help", NULL, NULL, "print this", NULL, &asked },
    };
    struct err err;
    int rc = args_parse(table, COUNT_OF(table), &argc, argv, &err);

    if (rc == 0 && (!text_u64(interval, 3600, &seconds) || seconds == 0))
        rc = err_set(&err, ERR_INPUT, "--interval: expected 1 to 3600 seconds, found '%.40s'",
                     interval);
    if (rc == 0 && (asked || argc != 2)) {
        fprintf(asked ? stdout : stderr, "usage: trainerctl top [--once] [--interval SECONDS] ADDR\n"
                                         "A live view of the tasks: phases, rates, and where the time of a step goes. "
                                         "q ends it.\n\n");
        if (asked)
            args_help(table, COUNT_OF(table), stdout);
        return asked ? CTL_OK : CTL_USAGE;
    }
    if (rc == 0)
        rc = ctl_group_open(argv[1], &t.group, &err);
    if (rc == 0)
        rc = ctl_task_open(&t.asked, &t.group.security, argv[1], argv[1], &err);
    if (rc == 0)
        rc = run(&t, 1000 * seconds, once, &err);
    if (rc < 0)
        fprintf(stderr, "trainerctl: %s\n", err.text);
    ctl_task_close(&t.asked);
    ctl_group_close(&t.group);
    return rc == 0 ? CTL_OK : rc == ERR_INPUT ? CTL_USAGE : CTL_FAILED;
}
