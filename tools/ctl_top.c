/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl top: redraws the picture of ctl_frame.c every second until q or Ctrl-C.
 *
 * Two threads: a reader requests a report every second, which takes as long as a blocked engine
 * lets it wait; the main thread draws and reads the keyboard, so that the picture shows how old the
 * figures are and q works at any time.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "config/stdout.h"
#include "tools/common.h"
#include "tools/ctl.h"

#define TURN_MS 1000

#define SCREEN_BEGIN "\033[?1049h\033[?25l" /* the other screen; no cursor */
#define SCREEN_END "\033[?25h\033[?1049l"
#define HOME "\033[H"
#define CLEAR_LINE "\033[K" /* at its start: behind a full line it would clear the last column */
#define CLEAR_BELOW "\033[J"

struct top {
	struct ctl_run *ctl;
	pthread_mutex_t lock; /* of the two below */
	json_object *report;
	uint64_t taken_ns; /* of `report` */
};

static volatile sig_atomic_t ended;

static void on_signal(int signal)
{
	ended = signal;
}

static void *reader(void *context)
{
	const struct timespec turn = {
		.tv_sec = TURN_MS / 1000, .tv_nsec = TURN_MS % 1000 * 1000000};
	struct top *top = context;

	for (;;) {
		json_object *report = ctl_report(top->ctl);
		/* before the lock, which a terminal that takes no output can hold for long */
		uint64_t taken_ns = now_ns();

		if (report) {
			pthread_mutex_lock(&top->lock);
			json_object_put(top->report);
			top->report = report;
			top->taken_ns = taken_ns;
			pthread_mutex_unlock(&top->lock);
		}
		nanosleep(&turn, NULL);
	}
	return NULL;
}

static void draw(struct top *top)
{
	struct winsize size = {.ws_row = 24, .ws_col = 80};

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || !size.ws_row || !size.ws_col)
		size = (struct winsize){.ws_row = 24, .ws_col = 80};
	fputs(HOME, stdout);
	pthread_mutex_lock(&top->lock);
	if (top->report)
		frame_print(&(struct frame){.report = top->report,
				    .age_ms = (now_ns() - top->taken_ns) / 1000000,
				    .rows = size.ws_row - 1u,
				    .columns = size.ws_col,
				    .line_begin = CLEAR_LINE},
			stdout);
	else
		fputs(CLEAR_LINE "no answer yet from the engine\n", stdout);
	pthread_mutex_unlock(&top->lock);
	/* Without a line end: the last row must not scroll the screen. */
	fprintf(stdout, CLEAR_BELOW "%.*s", size.ws_col, "q quits");
	fflush(stdout);
}

/* Until q, Ctrl-C or the end of the input; draws once a turn. */
static void watch(struct top *top)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

	while (!ended) {
		char key = 0;

		draw(top);
		if (poll(&input, 1, TURN_MS) <= 0)
			continue;
		if (read(STDIN_FILENO, &key, 1) == 0 || key == 'q' || key == 'Q')
			return;
	}
}

static int top_live(struct ctl_run *ctl)
{
	struct top top = {.ctl = ctl, .lock = PTHREAD_MUTEX_INITIALIZER};
	const struct sigaction action = {.sa_handler = on_signal};
	struct termios before, raw;
	pthread_t thread;

	if (!isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &before))
		die("top needs a terminal; top --once prints one picture");
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	if (pthread_create(&thread, NULL, reader, &top))
		die("no thread for the reports");
	raw = before;
	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	fputs(SCREEN_BEGIN, stdout);
	watch(&top);
	fputs(SCREEN_END, stdout);
	(void)fflush(stdout);
	tcsetattr(STDIN_FILENO, TCSANOW, &before);
	stdout_check();
	_exit(0); /* the reader may wait for the engine; the session ends with the process */
}

static int top_once(struct ctl_run *ctl)
{
	struct frame frame = {.rows = 24, .columns = 80};

	ctl_deadline(ctl);
	frame.report = ctl_report(ctl);
	if (!frame.report)
		return ctl_no_answer(ctl, pc_error());
	if (ctl->json)
		print_json(json_object_get(frame.report), stdout);
	else
		frame_print(&frame, stdout);
	json_object_put(frame.report);
	return 0;
}

int ctl_top(struct ctl_run *ctl)
{
	if (ctl->json && !ctl->once)
		die("top --json prints one document: give --once, too");
	return ctl->once ? top_once(ctl) : top_live(ctl);
}
