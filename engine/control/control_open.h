/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control plane as engine/main.c sees it: check, open, run, close. The thread that calls
 * control_run() is the control plane's.
 */
#ifndef CONTROL_CONTROL_OPEN_H
#define CONTROL_CONTROL_OPEN_H

struct control;
struct plan;
struct settings;
struct unit;

/* What control_check() leaves out. */
enum control_unchecked {
	UNCHECKED_SOCKET = 1, /* the folder of engine.socket: systemd makes it */
	UNCHECKED_FILES = 2,  /* all files: this process is another user than the engine's */
};
/*
 * For --check: logs everything that is known to be wrong with the settings on this host, as far as
 * it needs nothing that a serving engine may hold. `unit` starts the engine; empty: another program
 * does. Returns 0 or the first -errno.
 */
int control_check(const struct settings *settings, const struct plan *plan, const struct unit *unit,
	unsigned unchecked);
/*
 * Builds all parts; the engine serves clients from control_run() on. Returns 0 or -errno, after
 * logging the reason.
 */
int control_open(
	const struct settings *settings, const struct plan *plan, struct control **ret_control);
/*
 * Runs the loop until control_stop(), which returns 0, or until the engine cannot work any more:
 * -errno.
 */
int control_run(struct control *control);
/* Asks the control plane to shut down in order. Any thread and any signal handler may call it. */
void control_stop(struct control *control);
/*
 * Copies the pages of this host to others for so long, at most; 0: ends that. Any thread and any
 * signal handler may call it.
 */
void control_drain(struct control *control, unsigned seconds);
void control_close(struct control *control);

#endif
