/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metrics thread: takes the newest snapshot, keeps the history, and answers requests. What it
 * renders is kept until the next snapshot, so that many readers cost one rendering.
 */
#include "engine/control/observe/metrics.h"

#include <errno.h>
#include <event2/event.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/dashboard.h"
#include "engine/control/observe/health.h"
#include "engine/control/observe/history.h"
#include "engine/control/observe/http.h"
#include "engine/control/observe/json.h"
#include "engine/control/loop.h"
#include "engine/control/observe/metrics_text.h"
#include "engine/control/observe/report.h"
#include "engine/control/observe/view.h"
#include "numa/clock.h"

#define METRICS_TURN_US 250000 /* between two looks for a new snapshot */
#define PAGE_HEADERS                                                                               \
	"Content-Security-Policy: " DASHBOARD_CSP                                                  \
	"\r\nReferrer-Policy: no-referrer\r\nX-Frame-Options: DENY\r\n"

enum { TEXT_METRICS, TEXT_STATUS, TEXT_HISTORY, TEXT_CLUSTER, TEXTS };

struct metrics {
	/* read-only once the thread runs */
	const struct settings *settings;
	struct snapshots *snapshots;
	uint64_t *watched_ns; /* loop.h */
	unsigned rails;
	int stop; /* eventfd: the thread ends */
	cpu_set_t cores;
	pthread_t thread;
	/* owner: the metrics thread */
	struct event_base *base;
	struct event *stops, *turn;
	struct http *http;
	const struct snapshot *now; /* NULL: none yet */
	uint64_t seen_ns;           /* of the snapshot that was looked at last */
	struct history history;
	struct health_pasts pasts;
	struct http_body *text[TEXTS]; /* of `now`; NULL: not rendered */
	struct http_body *page;
};

/* ---- snapshots ------------------------------------------------------------------------------- */

static void texts_drop(struct metrics *m)
{
	for (unsigned i = 0; i < TEXTS; i++) {
		http_body_put(m->text[i]);
		m->text[i] = NULL;
	}
}

static void refresh(struct metrics *m)
{
	const struct snapshot *s = snapshots_newest(m->snapshots);

	if (!s || s->taken_ns == m->seen_ns)
		return;
	m->now = s;
	m->seen_ns = s->taken_ns;
	texts_drop(m);
	history_add(&m->history, s);
	health_pasts_add(&m->pasts, s);
}

/* ---- rendering ------------------------------------------------------------------------------- */

static void json_buckets(FILE *f, const uint64_t *latency)
{
	fputc('[', f);
	for (unsigned i = 0; i < LATENCY_BUCKETS; i++)
		fprintf(f, "%s%" PRIu64, i ? "," : "", latency[i]);
	fputc(']', f);
}

static void json_latency(FILE *f, const char *name, const uint64_t *latency)
{
	fprintf(f, "\"%s\":", name);
	json_buckets(f, latency);
}

/* Histograms as bucket counts, for percentiles of the time between two requests. */
static void json_latencies(FILE *f, const struct snapshot *s)
{
	fprintf(f, "\"latency\":{\"lower_ns\":[");
	for (unsigned i = 0; i < LATENCY_BUCKETS; i++)
		fprintf(f, "%s%" PRIu64, i ? "," : "", latency_lower_ns(i));
	fprintf(f, "],");
	json_latency(f, "get", s->clients.calls[STATISTICS_GET].latency);
	fputc(',', f);
	json_latency(f, "set", s->clients.calls[STATISTICS_SET].latency);
	fputc(',', f);
	json_latency(f, "exists", s->clients.calls[STATISTICS_EXISTS].latency);
	fputc(',', f);
	json_latency(f, "loop", s->lag);
	fprintf(f, ",\"rails\":[");
	for (unsigned r = 0; r < s->rails; r++) {
		if (r)
			fputc(',', f);
		json_buckets(f, s->rail[r].latency);
	}
	fprintf(f, "]}");
}

/* What is wrong now: for the page and, by /metrics, for the alerts. */
static void health_now(const struct metrics *m, uint64_t now_ns, struct health *ret)
{
	health_make(m->now, health_pasts_before(&m->pasts, m->now->taken_ns), now_ns, ret);
}

static void json_health(FILE *f, const struct metrics *m, uint64_t now_ns)
{
	struct health health;

	health_now(m, now_ns, &health);
	fprintf(f, "\"health\":{\"worst\":\"%s\",\"findings\":[",
		health.count ? severity_name(health_worst(&health)) : "ok");
	for (unsigned i = 0; i < health.count; i++) {
		fprintf(f, "%s{\"id\":\"%s\",\"severity\":\"%s\",\"text\":", i ? "," : "",
			finding_name(health.finding[i].id),
			severity_name(health.finding[i].severity));
		json_string(f, health.finding[i].text);
		fputc('}', f);
	}
	fprintf(f, "]}");
}

/* {"age_ms":...,"health":{...},"latency":{...},"report":{...}} */
static int status_text(const struct metrics *m, char **ret_text, size_t *ret_bytes)
{
	uint64_t now_ns = clock_now_ns();
	char *report;
	size_t bytes;
	bool failed;
	FILE *f;

	if (report_make(m->now, NULL, &report, &bytes) < 0)
		return -ENOMEM;
	f = open_memstream(ret_text, ret_bytes);
	if (f) {
		fprintf(f, "{\"age_ms\":%" PRIu64 ",", (now_ns - m->now->taken_ns) / 1000000);
		json_health(f, m, now_ns);
		fputc(',', f);
		json_latencies(f, m->now);
		fprintf(f, ",\"report\":%s}\n", report);
	}
	free(report);
	if (!f)
		return -ENOMEM;
	failed = ferror(f) != 0;
	if (fclose(f) || failed) {
		free(*ret_text);
		return -ENOMEM;
	}
	return 0;
}

static int render(struct metrics *m, unsigned which, char **ret_text, size_t *ret_bytes)
{
	struct health health;

	if (which == TEXT_METRICS) {
		health_now(m, clock_now_ns(), &health);
		return metrics_text(
			m->now, &health, m->settings->metrics_compat == 1, ret_text, ret_bytes);
	}
	if (which == TEXT_HISTORY)
		return history_json(&m->history, m->rails, ret_text, ret_bytes);
	if (which == TEXT_CLUSTER)
		return view_json(m->now, clock_now_ns(), ret_text, ret_bytes);
	return status_text(m, ret_text, ret_bytes);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void answer_line(struct http_response *ret, unsigned status, const char *line)
{
	char *text = NULL;
	int bytes = asprintf(&text, "%s\n", line);

	ret->status = status;
	ret->type = "text/plain; charset=utf-8";
	ret->body = bytes < 0 ? NULL : http_body_new(text, (size_t)bytes);
}

static void answer_text(
	struct metrics *m, unsigned which, const char *type, struct http_response *ret)
{
	size_t bytes;
	char *text;

	if (!m->now) {
		answer_line(ret, 503, "the engine is starting");
		return;
	}
	/* A blocked control plane publishes nothing: ages are of this moment. */
	if (which != TEXT_HISTORY && clock_now_ns() - m->now->taken_ns > HEALTH_BLOCKED_NS) {
		http_body_put(m->text[which]);
		m->text[which] = NULL;
	}
	if (!m->text[which] && render(m, which, &text, &bytes) == 0)
		m->text[which] = http_body_new(text, bytes);
	if (!m->text[which]) {
		answer_line(ret, 503, "no memory for this answer");
		return;
	}
	ret->status = 200;
	ret->type = type;
	ret->body = m->text[which];
	ret->body->references++;
}

/* The loop requests summaries of other members for a while from now on. */
static void answer_cluster(struct metrics *m, struct http_response *ret)
{
	shm_store64(m->watched_ns, clock_now_ns());
	answer_text(m, TEXT_CLUSTER, "application/json", ret);
}

static void answer_ready(struct metrics *m, struct http_response *ret)
{
	const char *why = "the engine is starting";
	const struct health_wanted wanted = {
		.members = (unsigned)m->settings->metrics_ready_members,
		.alone = m->settings->metrics_ready_alone};
	char text[384];

	if (m->now)
		why = health_not_ready(m->now, &wanted, clock_now_ns(), text, sizeof(text));
	answer_line(ret, why ? 503 : 200, why ? why : "ready");
}

/* Alive: the loop has turned lately. An orchestrator restarts an engine that says no. */
static void answer_alive(const struct metrics *m, struct http_response *ret)
{
	if (m->now && clock_now_ns() - m->now->taken_ns > 4 * HEALTH_BLOCKED_NS)
		answer_line(ret, 503, "the control plane is blocked");
	else
		answer_line(ret, 200, "ok");
}

static void answer_page(struct metrics *m, struct http_response *ret)
{
	ret->status = 200;
	ret->type = "text/html; charset=utf-8";
	ret->headers = PAGE_HEADERS;
	ret->body = m->page;
	ret->body->references++;
}

static void answer(void *context, const struct http_request *request, struct http_response *ret)
{
	struct metrics *m = context;
	const char *path = request->path;

	refresh(m);
	if (!strcmp(path, "/metrics"))
		answer_text(m, TEXT_METRICS, "text/plain; version=0.0.4; charset=utf-8", ret);
	else if (!strcmp(path, "/api/status"))
		answer_text(m, TEXT_STATUS, "application/json", ret);
	else if (!strcmp(path, "/api/history"))
		answer_text(m, TEXT_HISTORY, "application/json", ret);
	else if (!strcmp(path, "/api/cluster"))
		answer_cluster(m, ret);
	else if (!strcmp(path, "/healthz"))
		answer_alive(m, ret);
	else if (!strcmp(path, "/readyz"))
		answer_ready(m, ret);
	else if (!strcmp(path, "/") || !strcmp(path, "/dashboard") || !strcmp(path, "/index.html"))
		answer_page(m, ret);
	else
		answer_line(ret, 404,
			"not here; try / /metrics /healthz /readyz /api/status /api/history /api/cluster");
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void on_turn(evutil_socket_t fd, short what, void *context)
{
	(void)fd;
	(void)what;
	refresh(context);
}

static void on_stop(evutil_socket_t fd, short what, void *context)
{
	struct metrics *m = context;

	(void)fd;
	(void)what;
	event_base_loopbreak(m->base);
}

static void *run(void *context)
{
	struct metrics *m = context;

	(void)sched_setaffinity(0, sizeof(m->cores), &m->cores); /* refused: it stays as it is */
	event_base_dispatch(m->base);
	return NULL;
}

/* Takes `core` out of the set unless it is the last one. */
static void core_avoid(cpu_set_t *set, int core)
{
	if (core >= 0 && core < CPU_SETSIZE && CPU_COUNT(set) > CPU_ISSET((size_t)core, set))
		CPU_CLR((size_t)core, set);
}

/* Not where a poll core spins; not where the control plane runs, which would wait for us. */
static void cores_choose(const struct control *control, cpu_set_t *ret)
{
	CPU_ZERO(ret);
	(void)sched_getaffinity(0, sizeof(*ret), ret);
	for (unsigned i = 0; i < control->rails; i++)
		core_avoid(ret, control->plan.rail[i].core);
	core_avoid(ret, control->plan.control_core);
}

static void metrics_free(struct metrics *m)
{
	texts_drop(m);
	http_close(m->http);
	http_body_put(m->page);
	if (m->stops)
		event_free(m->stops);
	if (m->turn)
		event_free(m->turn);
	if (m->base)
		event_base_free(m->base);
	if (m->stop >= 0)
		close(m->stop);
	free(m);
}

static int metrics_prepare(struct metrics *m, int fd)
{
	const struct timeval every = {.tv_usec = METRICS_TURN_US};
	char *page = malloc(dashboard_bytes);
	int rc;

	m->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	m->base = event_base_new();
	if (m->stop < 0 || !m->base || !page) {
		free(page);
		close(fd);
		return -ENOMEM;
	}
	memcpy(page, dashboard_text, dashboard_bytes);
	m->page = http_body_new(page, dashboard_bytes);
	rc = http_open(m->base, fd, answer, m, &m->http);
	m->stops = event_new(m->base, m->stop, EV_READ, on_stop, m);
	m->turn = event_new(m->base, -1, EV_PERSIST, on_turn, m);
	if (rc < 0 || !m->page || !m->stops || !m->turn || event_add(m->stops, NULL) < 0 ||
		event_add(m->turn, &every) < 0)
		return -ENOMEM;
	return 0;
}

/* Signals are the main thread's. */
static int thread_start(struct metrics *m)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&m->thread, NULL, run, m);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -rc;
}

int metrics_open(struct control *control)
{
	struct metrics *m;
	int fd, rc;

	rc = metrics_port_listen(control, &fd);
	if (fd < 0)
		return rc;
	m = calloc(1, sizeof(*m));
	if (!m) {
		close(fd);
		return -ENOMEM;
	}
	m->settings = control->settings;
	m->snapshots = control->loop.snapshots;
	m->watched_ns = &control->loop.watched_ns;
	m->rails = control->rails;
	m->stop = -1;
	cores_choose(control, &m->cores);
	snapshot_take(control, snapshots_writing(control->loop.snapshots));
	view_own(control, snapshots_writing(control->loop.snapshots));
	snapshots_publish(control->loop.snapshots);
	rc = metrics_prepare(m, fd);
	if (rc == 0)
		rc = thread_start(m);
	if (rc < 0) {
		metrics_free(m);
		return rc;
	}
	control->metrics = m;
	return 0;
}

void metrics_close(struct control *control)
{
	struct metrics *m = control->metrics;

	if (!m)
		return;
	(void)eventfd_write(m->stop, 1);
	pthread_join(m->thread, NULL);
	metrics_free(m);
	control->metrics = NULL;
}
