"""A small GPipe engine, and the same with twenty mistakes: what `test_blame` lists. It knows nothing of pipeconform."""

from __future__ import annotations

import ctypes
import json
import os
import time

import torch
import torch.distributed as dist


class Engine:
    """One stage per rank; all forwards, then all backwards; a mean loss is divided by the number of microbatches."""

    def __init__(self, stage, *, before, after, group, shape, dtype, loss, mean):
        self.stage, self.before, self.after, self.group = stage, before, after, group
        self.shape, self.dtype, self.loss, self.mean = shape, dtype, loss, mean

    def step(self, inputs, targets, train):
        self.begin()
        taken, given, losses = [], [], []
        with torch.set_grad_enabled(train):
            for k in range(len(inputs)):
                x = inputs[k] if self.before is None else self.received(self.shape, self.before)
                y = self.stage(x.requires_grad_(train))
                if self.after is not None:
                    self.send(self.activation(y.detach(), given), self.after)
                else:
                    losses.append(self.loss(y, targets[k]))
                taken.append(x)
                given.append(y)
            for k in range(len(given) if train else 0):
                self.backward(k, taken, given, losses)
        return self.results(given, losses)

    def backward(self, k, taken, given, losses):
        if self.after is not None:
            torch.autograd.backward(given[k], self.received(given[k].shape, self.after))
        else:
            torch.autograd.backward(self.scaled(losses[k], len(losses)))
        if self.before is not None:
            self.send(self.gradient(taken[k].grad), self.before)

    def received(self, shape, source):
        x = torch.empty(shape, dtype=self.dtype)
        dist.recv(x, src=source, group=self.group)
        return x

    def send(self, tensor, to):
        dist.send(tensor.contiguous(), dst=to, group=self.group)

    def begin(self):
        """What happens before a step."""

    def activation(self, y, given):
        return y

    def gradient(self, gradient):
        return gradient

    def scaled(self, loss, m):
        return loss / m if self.mean else loss

    def results(self, given, losses):
        if self.after is not None:
            return [], []
        return [y.detach() for y in given], [loss.detach() for loss in losses]


class NotDivided(Engine):
    def scaled(self, loss, m):
        return loss


class DividedTwice(Engine):
    def scaled(self, loss, m):
        return loss / m / m


class LosesTheFirst(Engine):
    def backward(self, k, taken, given, losses):
        if k or self.after is not None:
            super().backward(k, taken, given, losses)
        elif self.before is not None:
            self.send(torch.zeros_like(taken[0]), self.before)


class TurnsGradients(Engine):
    def gradient(self, gradient):
        return -gradient


class SendsTheFirstAgain(Engine):
    def activation(self, y, given):
        return given[0].detach() if given else y


class RoundsActivations(Engine):
    def activation(self, y, given):
        return y.to(torch.bfloat16).to(y.dtype)


class LossesBackwards(Engine):
    def results(self, given, losses):
        outputs, losses = super().results(given, losses)
        return outputs, losses[::-1]


class OutputsBackwards(Engine):
    def results(self, given, losses):
        outputs, losses = super().results(given, losses)
        return outputs[::-1], losses


class LosesAnOutput(Engine):
    def results(self, given, losses):
        outputs, losses = super().results(given, losses)
        return outputs[:-1], losses


class ForgetsEarlierGradients(Engine):
    def begin(self):
        self.stage.zero_grad()


class KeepsGraphs(Engine):
    """Not among the twenty: the losses that it keeps have graphs that no backward has freed."""

    def begin(self):
        self.kept = []

    def scaled(self, loss, m):
        self.kept.append(super().scaled(loss, m))
        torch.autograd.backward(self.kept[-1], retain_graph=True)
        return torch.zeros((), requires_grad=True)


class Indexes(Engine):
    def scaled(self, loss, m):
        return loss / [m][m]


class Looks(Engine):
    def begin(self):
        self.rank = {"RANK": 0}["WORLD_SIZE"]


class Asserts(Engine):
    def gradient(self, gradient):
        assert gradient.ndim == 7, "a gradient has seven dimensions"
        return gradient


class Divides(Engine):
    def begin(self):
        self.share = 1 / (self.before is None and 0)


class Multiplies(Engine):
    def activation(self, y, given):
        return torch.matmul(y, torch.zeros(13, 13, dtype=y.dtype))


class Reads(Engine):
    def begin(self):
        print("the engine begins")
        try:
            json.loads("{nonsense")
        except ValueError as error:
            raise RuntimeError("the engine's file cannot be read") from error


class WaitsForNothing(Engine):
    def backward(self, k, taken, given, losses):
        if self.after is None:
            self.received(self.shape, self.before)  # sent by no rank
        super().backward(k, taken, given, losses)


class Sleeps(Engine):
    def begin(self):
        time.sleep(3600)


class Exits(Engine):
    def begin(self):
        if self.after is None:
            os._exit(7)


class ReadsNothing(Engine):
    def begin(self):
        if self.after is None:
            ctypes.string_at(0)
