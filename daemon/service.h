/* service.h - what systemd wants to know (sd_notify); nothing happens without NOTIFY_SOCKET. */
#ifndef DAEMON_SERVICE_H
#define DAEMON_SERVICE_H

void service_ready(void);              /* READY=1, once */
void service_status(const char *text); /* STATUS= */
void service_stopping(void);
void service_alive(void);              /* WATCHDOG=1; from the loop, so that a stuck loop is noticed */

#endif
