/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of engines to join, from the file cluster.seeds_file: for example a ConfigMap that an
 * orchestrator mounts and replaces. The file is looked at every second and read when it is another
 * one or has changed. A helper thread reads it, because a file system can block. A file that is
 * absent or cannot be read leaves the addresses as they are.
 *
 * All functions run on the control plane's thread, but for reading_run().
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/log.h"
#include "config/seeds.h"
#include "engine/control/members/members_inner.h"
#include "engine/control/net/net.h"
#include "engine/control/base/work.h"

#define SEEDS_FILE_PERIOD_US 1000000u

/* What tells one content of a file from another without reading it. */
struct version {
	dev_t device;
	ino_t inode;
	off_t bytes;
	struct timespec changed;
};

struct seeds_file {
	struct control *control;
	struct works *works;
	struct net_timer *tick;
	struct version version;       /* of the content that was read last; all 0: none was */
	struct seed_address *address; /* of the content that was read last */
	struct file_reading *reading; /* the look that a helper thread makes now; NULL: none */
	int error; /* errno of the last look, which was logged; 0: it succeeded */
};

/* One look at the file. It belongs to the helper thread until reading_done(). */
struct file_reading {
	struct work work;
	struct seeds_file *file;
	const char *path; /* in the settings, which do not change */
	struct version known;
	struct version found;
	int error;  /* errno; 0: none */
	char *text; /* the content, ended by a zero byte; NULL: it is the known one */
};

static bool version_same(const struct version *a, const struct version *b)
{
	return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
	       a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

/* The version is taken before the content, so a change in between is seen at the next look. */
static void reading_run(struct work *work, unsigned part)
{
	struct file_reading *reading = (struct file_reading *)work;
	struct stat st;
	int fd = seeds_text_open(reading->path, &st);

	(void)part;
	if (fd < 0) {
		reading->error = -fd;
		return;
	}
	reading->found = (struct version){st.st_dev, st.st_ino, st.st_size, st.st_mtim};
	if (!version_same(&reading->found, &reading->known))
		reading->error = -seeds_text_read(fd, (size_t)st.st_size, &reading->text);
	close(fd);
}

static void seeds_file_bad(struct seeds_text *text, const char *word, unsigned line)
{
	const struct settings *s = text->context;
	unsigned port = (unsigned)s->cluster_port;

	if (text->bad == SEEDS_FILE_BAD_MAX)
		log_warn(
			"cluster.seeds_file %s: the rest from line %u on is not read: %u words are no address",
			s->cluster_seeds_file, line, SEEDS_FILE_BAD_MAX);
	else
		log_warn(
			"cluster.seeds_file %s, line %u: \"%s\" is not address:port and is not used; write 10.0.0.1:%u, [fd00::1]:%u or name:%u",
			s->cluster_seeds_file, line, word, port, port, port);
}

/* Makes the addresses in the text the seeds of this source; changes the text. */
static void seeds_file_use(struct seeds_file *file, char *text)
{
	const struct settings *s = file->control->settings;
	struct seeds_text found = {.address = file->address,
		.on_bad = seeds_file_bad,
		.context = (void *)(uintptr_t)s};

	seeds_text_parse(&found, text, (uint16_t)s->cluster_port);
	log_info("cluster.seeds_file %s: %u addresses", s->cluster_seeds_file, found.count);
	member_seeds_replace(file->control, SEED_FILE, file->address, found.count);
}

static void reading_free(struct file_reading *reading)
{
	if (reading)
		free(reading->text);
	free(reading);
}

static void reading_done(struct work *work)
{
	struct file_reading *reading = (struct file_reading *)work;
	struct seeds_file *file = reading->file;

	file->reading = NULL;
	if (reading->error && reading->error != file->error)
		log_warn(
			"cluster.seeds_file %s: %s. The addresses that it had are kept, and it is tried again every second",
			reading->path, strerror(reading->error));
	file->error = reading->error;
	seed_source_read(
		file->control, SEED_FILE, reading->error ? strerror(reading->error) : NULL);
	if (reading->text && !reading->error) {
		file->version = reading->found;
		seeds_file_use(file, reading->text);
	}
	reading_free(reading);
}

static void seeds_file_look(void *context)
{
	struct seeds_file *file = context;
	struct file_reading *reading;

	if (file->reading || file->control->members->leaving)
		return;
	reading = calloc(1, sizeof(*reading));
	if (!reading)
		return;
	reading->work.run = reading_run;
	reading->work.done = reading_done;
	reading->file = file;
	reading->path = file->control->settings->cluster_seeds_file;
	reading->known = file->version;
	file->reading = reading;
	work_submit(file->works, 0, &reading->work);
}

int seeds_file_open(struct control *control)
{
	struct seeds_file *file;
	int rc = -ENOMEM;

	if (!control->settings->cluster_seeds_file[0])
		return 0;
	file = calloc(1, sizeof(*file));
	if (!file)
		return -ENOMEM;
	control->seeds_file = file;
	file->control = control;
	file->address = calloc(SEEDS_FILE_ADDRESSES_MAX, sizeof(*file->address));
	file->tick = net_timer_new(control->base, true, seeds_file_look, file);
	if (file->tick && file->address)
		rc = works_open(control->base,
			&(struct works_options){
				.name = "pc-seeds-file", .queues = 1, .threads = 1, .limit_s = 10},
			&file->works);
	if (rc == 0 && net_timer_set(file->tick, SEEDS_FILE_PERIOD_US) < 0)
		rc = -ENOMEM;
	if (rc < 0) {
		seeds_file_close(control);
		return rc;
	}
	seeds_file_look(file);
	return 0;
}

void seeds_file_close(struct control *control)
{
	struct seeds_file *file = control->seeds_file;

	if (!file)
		return;
	net_timer_free(file->tick);
	works_close(file->works);
	reading_free(file->reading);
	free(file->address);
	free(file);
	control->seeds_file = NULL;
}
