/* ctl_restart.c - `trainerctl restart`: renames the checkpoint directory of a complete job, once,
 * before its tasks start. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "conf/job.h"
#include "daemon/args.h"
#include "daemon/ctl.h"
#include "daemon/restart.h"

int ctl_set_aside(const char *job, struct err *err)
{
    struct conf *c;
    char text[8400];
    int rc = conf_read(job, &c, err);

    if (rc < 0)
        return rc;
    rc = restart_set_aside(c, text, sizeof(text), err);
    if (rc == 0)
        log_info("restart", "%s", text);
    conf_free(c);
    return rc;
}

int ctl_restart(int argc, char **argv)
{
    bool wants_help = false;
    const struct arg table[] = { { "help", NULL, NULL, "print this", NULL, &wants_help } };
    struct err err = { 0 };
    int rc = args_parse(table, 1, &argc, argv, &err);

    if (rc == 0 && (wants_help || argc != 2)) {
        fprintf(wants_help ? stdout : stderr, "usage: trainerctl restart JOB\n\nRenames the folder "
                                              "of checkpoints of a complete job, so that its "
                                              "tasks train it again.\nNothing is removed, and "
                                              "checkpoints of a run that is not complete stay. "
                                              "No task of the\njob may run meanwhile.\n");
        return wants_help ? CTL_OK : CTL_USAGE;
    }
    if (rc == 0)
        log_init(LOG_TEXT, LOG_INFO);
    if (rc == 0)
        rc = ctl_set_aside(argv[1], &err);
    if (rc < 0)
        fprintf(stderr, "trainerctl: %s\n", err.text);
    return ctl_exit_code(rc);
}
