/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test.fault_file: follows the file that it names. It contains words "RAIL:FAULT"; rails that it
 * does not name have no fault.
 *   down, mute, error, slowN   as in struct dv_test_fault
 *   lateN   each READ samples its memory again N ms later, as if it had been retransmitted
 *   lose    one request is lost, and retransmitted
 *   numb    mute, and no completion is written any more, not even of flushed work
 *   stiff   numb, and queue pairs cannot be put in the error state
 *   fatal   numb, the device reports that it died, all calls fail with EIO, but it can be closed
 *   dead    fatal, and it cannot be closed either
 *   hang    the control loop stands still
 * The file must be replaced as a whole (rename).
 * test.clock_file: maps the file for the poll cores, see engine/rail/model_clock.h.
 *
 * Control plane's thread only.
 */
#include "engine/control/control_inner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/base/control.h"
#include "engine/control/net/net.h"

#define LOOK_MS 2
#define FAULTS_BYTES 256

struct fault_file {
	struct net_timer *look;
	/* content of the file of injected faults when it was last applied */
	char text[FAULTS_BYTES];
};

static const struct {
	const char *word;
	unsigned dead;
} deaths[] = {
	{"numb", DV_DEAD_CQES},
	{"stiff", DV_DEAD_CQES | DV_DEAD_ERROR},
	{"fatal", DV_DEAD_CQES | DV_DEAD_ERROR | DV_DEAD_KILL | DV_DEAD_SAYS_SO},
	{"dead", DV_DEAD_CQES | DV_DEAD_ERROR | DV_DEAD_KILL | DV_DEAD_SAYS_SO | DV_DEAD_CUT},
};

static bool fault_parse(const char *word, unsigned rails, struct dv_test_fault *all)
{
	char what[16];
	unsigned rail;

	if (sscanf(word, "%u:%15s", &rail, what) != 2 || rail >= rails)
		return false;
	for (size_t i = 0; i < sizeof(deaths) / sizeof(deaths[0]); i++)
		if (!strcmp(what, deaths[i].word)) {
			all[rail].mute = true;
			all[rail].dead = deaths[i].dead;
			return true;
		}
	if (!strcmp(what, "down"))
		all[rail].link_down = true;
	else if (!strcmp(what, "mute"))
		all[rail].mute = true;
	else if (!strcmp(what, "error"))
		all[rail].error = true;
	else if (!strcmp(what, "lose"))
		all[rail].lose = true;
	else if (!strcmp(what, "hang"))
		for (;;)
			pause();
	else
		return sscanf(what, "slow%u", &all[rail].slow) == 1 ||
		       (sscanf(what, "late%u", &all[rail].late_ms) == 1 &&
			       all[rail].late_ms <= 1000);
	return true;
}

static void faults_follow(struct control *control, const char *text)
{
	struct dv_test_fault all[RAILS_MAX] = {{.slow = 0}};
	char copy[FAULTS_BYTES], *rest = NULL;

	memcpy(copy, text, sizeof(copy));
	for (char *word = strtok_r(copy, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest))
		if (!fault_parse(word, control->rails, all))
			log_error(
				"test.fault_file: \"%s\": give RAIL:down, mute, error, slowN, lateN (ms), lose, numb, stiff, fatal, dead or hang",
				word);
	for (unsigned r = 0; r < control->rails; r++)
		if (dv_test_fault(control->rail[r].device, &all[r]) < 0)
			log_error("test.fault_file: rail %u is not a software NIC", r);
	log_info("test.fault_file: %s", text[0] ? text : "nothing is wrong any more");
}

static void fault_file_look(void *context)
{
	struct control *control = context;
	struct fault_file *faults = control->fault_file;
	char text[FAULTS_BYTES] = "";
	int fd = open(control->settings->test_fault_file, O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		ssize_t n = read(fd, text, sizeof(text) - 1);

		text[n > 0 ? n : 0] = '\0';
		close(fd);
	}
	text[strcspn(text, "\n")] = '\0';
	if (!strcmp(text, faults->text))
		return;
	memcpy(faults->text, text, sizeof(text));
	faults_follow(control, text);
}

static int fault_file_open(struct control *control)
{
	struct fault_file *faults = calloc(1, sizeof(*faults));

	if (!faults)
		return -ENOMEM;
	control->fault_file = faults;
	faults->look = net_timer_new(control->base, true, fault_file_look, control);
	return faults->look && net_timer_set(faults->look, LOOK_MS * 1000) == 0 ? 0 : -ENOMEM;
}

int test_hooks_open(struct control *control)
{
	const struct settings *s = control->settings;
	int rc = s->test_fault_file[0] ? fault_file_open(control) : 0;

	if (rc == 0 && s->test_clock_file[0]) {
		control->clock_file = model_clock_map(s->test_clock_file);
		if (!control->clock_file) {
			rc = -errno;
			log_error("test.clock_file = %s: %s", s->test_clock_file, strerror(errno));
		}
	}
	if (rc < 0)
		test_hooks_close(control);
	return rc;
}

void test_hooks_close(struct control *control)
{
	if (control->fault_file)
		net_timer_free(control->fault_file->look);
	free(control->fault_file);
	control->fault_file = NULL;
}
