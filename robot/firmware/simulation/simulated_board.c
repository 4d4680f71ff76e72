/*
 * The chip on a table without hardware: simavr runs the real hex file in real time. Its line is a pseudo-terminal, its other
 * pins are wired to whoever started this program, who moves the cart.
 *
 *   simulated_board CHIP HEX_FILE
 *
 * First it prints a line with the terminal's name. Then, on the same pipe, it reports (report_t) each change of the motor's
 * pins and each millisecond, and after a millisecond it reads what the cart does in the next (inputs_t) from standard input.
 * It ends with that.
 *
 * Time in which this program was kept from running does not exist for the chip.
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <simavr/avr_ioport.h>
#include <simavr/sim_avr.h>
#include <simavr/sim_hex.h>

#include "line.h"

#define CHUNK_CYCLES (FREQUENCY / 5000)
#define MS_CYCLES (FREQUENCY / 1000)
#define LONGEST_LAG_S 0.002

/* Addresses in data memory are the same in both chips but for these. */
typedef struct {
    const char *name;
    char encoder_port, switch_port;
    uint8_t first_switch_bit, pwm_bit, direction_bit;
    uint16_t encoder_pins, switch_pins;
} chip_t;

static const chip_t chips[] = {
    {"atmega328p", 'C', 'D', 4, 1, 0, 0x26, 0x29},
    {"atmega2560", 'B', 'A', 0, 5, 6, 0x23, 0x20},
};
enum { DDRB = 0x24, PORTB = 0x25, TCCR1A = 0x80, TCCR1B = 0x81, TCNT1 = 0x84, ICR1 = 0x86, OCR1A = 0x88 };

typedef struct {
    uint32_t is_millisecond;
    /* Of the supply; the direction is the sign. */
    float duty;
    /* Since the chip was switched on, on its own clock: now, and when it had the last byte from the line. */
    double chip_s, received_s;
    uint32_t n_lost_bytes, n_restarts;
} report_t;

typedef struct {
    int32_t cart, pole;
    /* Low to high: limit at the negative end, at the positive end, emergency stop, bridge's fault output. */
    uint8_t contacts;
    uint8_t action;
    uint8_t unused[2];
} inputs_t;
enum { NOTHING, RESTART, HANG, UNPLUG };

static const chip_t *chip;
static avr_t *avr;
static avr_irq_t *encoder_irq, *switch_irq;
static double base_s;
static uint32_t n_restarts;
static int32_t count[2], target[2];
static uint32_t edge_cycles[2];
static uint8_t contacts = 0x08;
static void (*chip_reset)(struct avr_t *);

static double chip_now_s(void)
{
    return (double)avr->cycle / FREQUENCY;
}

static double computer_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

void fail(const char *what)
{
    fprintf(stderr, "simulated_board: %s\n", what);
    exit(2);
}

/* --- pins --- */

static uint8_t encoder_levels(void)
{
    static const uint8_t levels[4] = {0, 1, 3, 2};
    return levels[count[0] & 3] | levels[count[1] & 3] << 2;
}

/* What is outside is stronger than the chip's pull-up. */
static void wire(char port, avr_irq_t *irq, uint8_t first, uint8_t levels)
{
    avr_ioport_external_t external = {.name = port, .mask = 0x0F << first, .value = levels << first};
    avr_ioctl(avr, AVR_IOCTL_IOPORT_SET_EXTERNAL(port), &external);
    for (int i = 0; i < 4; i++)
        avr_raise_irq(irq + first + i, levels >> i & 1);
}

static avr_cycle_count_t turn(avr_t *the_avr, avr_cycle_count_t when, void *param)
{
    int encoder = (int)(intptr_t)param;
    if (count[encoder] == target[encoder])
        return 0;
    count[encoder] += target[encoder] > count[encoder] ? 1 : -1;
    wire(chip->encoder_port, encoder_irq, 0, encoder_levels());
    /* The channels of this encoder are not a quarter of a period apart but an eighth: every other edge comes soon. */
    return when + (count[encoder] & 1 ? edge_cycles[encoder] / 2 : edge_cycles[encoder] * 3 / 2);
}

static void move_encoder(int encoder, int32_t to)
{
    target[encoder] = to;
    /* Over the whole millisecond. */
    edge_cycles[encoder] = MS_CYCLES / (abs(to - count[encoder]) + 1);
    if (to != count[encoder] && !avr_cycle_timer_status(avr, turn, (void *)(intptr_t)encoder))
        avr_cycle_timer_register(avr, edge_cycles[encoder], turn, (void *)(intptr_t)encoder);
}

/* Registers are zero after a reset, but the world outside is as it was. */
static void after_reset(avr_t *the_avr)
{
    if (chip_reset)
        chip_reset(the_avr);
    n_restarts++;
    avr->data[chip->encoder_pins] = encoder_levels();
    avr->data[chip->switch_pins] = contacts << chip->first_switch_bit;
    line_reset();
}

/* What the bridge makes of the pins. Settings that the firmware never uses count as the worst. */
static float motor_duty(void)
{
    const uint8_t *data = avr->data;
    float sign = data[PORTB] >> chip->direction_bit & 1 ? -1.0f : 1.0f;
    uint8_t output = data[TCCR1A] >> 6;
    /* An input: the resistor at the bridge pulls it down. */
    if (!(data[DDRB] >> chip->pwm_bit & 1))
        return 0.0f;
    if (output == 0)
        return data[PORTB] >> chip->pwm_bit & 1 ? sign : 0.0f;
    bool fast_pwm = (data[TCCR1A] & 3) == 2 && (data[TCCR1B] & 0x1F) == 0x19;
    if (output != 2 || !fast_pwm)
        return sign;
    uint32_t high = data[OCR1A] | data[OCR1A + 1] << 8, top = data[ICR1] | data[ICR1 + 1] << 8;
    return high >= top ? sign : sign * (high + 1) / (top + 1);
}

/* A counter that is set to its top or beyond misses it: the period would last 4 ms, with the pin as it was. simavr does not show that. */
static void counter_is_set(avr_t *the_avr, avr_io_addr_t address, uint8_t low, void *param)
{
    const uint8_t *data = the_avr->data;
    if ((low | data[TCNT1 + 1] << 8) >= (data[ICR1] | data[ICR1 + 1] << 8))
        fail("the motor's counter was set to its top: on a chip it would run on to 65,535");
}

/* --- time and the one who started us --- */

static void report(bool is_millisecond, float duty)
{
    report_t out = {is_millisecond, duty, chip_now_s(), line_received_s(), line_lost_bytes(), n_restarts};
    if (write(STDOUT_FILENO, &out, sizeof(out)) != sizeof(out))
        exit(0);
}

static void act(uint8_t action)
{
    static const uint8_t jump_to_itself[2] = {0xFF, 0xCF};
    switch (action) {
    case RESTART:
        avr_reset(avr);
        break;
    case HANG:
        /* At the end of the flash, with interrupts off: nothing that the firmware wrote runs any more. */
        memcpy(avr->flash + avr->flashend - 1, jump_to_itself, 2);
        avr->pc = avr->flashend - 1;
        avr->state = cpu_Running;
        avr->sreg[S_I] = 0;
        break;
    case UNPLUG:
        line_unplug();
        break;
    }
}

static void next_millisecond(float duty)
{
    inputs_t in;
    report(true, duty);
    for (size_t n = 0; n < sizeof(in);) {
        ssize_t got = read(STDIN_FILENO, (char *)&in + n, sizeof(in) - n);
        if (got <= 0)
            exit(0);
        n += got;
    }
    act(in.action);
    contacts = in.contacts;
    wire(chip->switch_port, switch_irq, chip->first_switch_bit, contacts);
    move_encoder(0, in.cart);
    move_encoder(1, in.pole);
}

/* The chip waits for the computer's clock; bytes that come end the wait. */
static void keep_pace(void)
{
    double ahead_s = base_s + chip_now_s() - computer_now_s();
    if (ahead_s < -LONGEST_LAG_S)
        base_s -= ahead_s;
    while (ahead_s > 0.0) {
        struct timespec wait = {0, (long)(1e9 * ahead_s)};
        nanosleep(&wait, NULL);
        ahead_s = base_s + chip_now_s() - computer_now_s();
    }
}

static void do_not_sleep(avr_t *the_avr, avr_cycle_count_t cycles)
{
}

static avr_cycle_count_t wake(avr_t *the_avr, avr_cycle_count_t when, void *param)
{
    return 0;
}

static void run(void)
{
    float before = 0.0f;
    avr_cycle_count_t chunk_end = 0;
    base_s = computer_now_s();
    for (uint64_t chunk = 0;; chunk++) {
        chunk_end += CHUNK_CYCLES;
        /* A chip that sleeps does not sleep beyond this. */
        avr_cycle_timer_register(avr, chunk_end > avr->cycle ? chunk_end - avr->cycle : 1, wake, NULL);
        while (avr->cycle < chunk_end) {
            int state = avr_run(avr);
            if (state == cpu_Done || state == cpu_Crashed)
                fail("the program on the chip crashed");
            float duty = motor_duty();
            if (duty != before)
                report(false, before = duty);
        }
        line_exchange();
        if (chunk % (MS_CYCLES / CHUNK_CYCLES) == 0)
            next_millisecond(before);
        keep_pace();
    }
}

static void load(const char *path)
{
    ihex_chunk_p chunks = NULL;
    int n = read_ihex_chunks(path, &chunks);
    if (n <= 0)
        fail("the hex file cannot be read");
    for (int i = 0; i < n; i++) {
        if (chunks[i].baseaddr + chunks[i].size > avr->flashend + 1)
            fail("the hex file does not fit into the chip");
        memcpy(avr->flash + chunks[i].baseaddr, chunks[i].data, chunks[i].size);
        avr->codeend = chunks[i].baseaddr + chunks[i].size;
    }
}

int main(int argc, char **argv)
{
    if (argc != 3)
        fail("usage: simulated_board CHIP HEX_FILE");
    for (size_t i = 0; i < sizeof(chips) / sizeof(chips[0]); i++)
        if (!strcmp(argv[1], chips[i].name))
            chip = &chips[i];
    avr = chip ? avr_make_mcu_by_name(chip->name) : NULL;
    if (!avr)
        fail("unknown chip");
    avr_init(avr);
    avr->frequency = FREQUENCY;
    avr->log = 0;
    avr->sleep = do_not_sleep;
    chip_reset = avr->reset;
    avr->reset = after_reset;
    load(argv[2]);
    avr_register_io_write(avr, TCNT1, counter_is_set, NULL);
    encoder_irq = avr_io_getirq(avr, AVR_IOCTL_IOPORT_GETIRQ(chip->encoder_port), 0);
    switch_irq = avr_io_getirq(avr, AVR_IOCTL_IOPORT_GETIRQ(chip->switch_port), 0);
    wire(chip->encoder_port, encoder_irq, 0, 0);
    wire(chip->switch_port, switch_irq, chip->first_switch_bit, contacts);
    line_open(avr);
    run();
}
