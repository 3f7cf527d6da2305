"""An agent's loop, in this process; what its ranks do is tested with agents of their own."""

from pipeconform.attach.agent import _Agent
from pipeconform.attach.messages import Bye, Pulse, encode
from tests.attach.secured import linked


def test_an_agent_that_reports_while_the_controller_says_goodbye_ends_as_after_any_goodbye():
    link, controller = linked()
    agent = _Agent(link, listen="127.0.0.1", device_index=0)
    controller.send(encode(Bye()))
    controller.close()
    agent._say(Pulse(ranks=()))
    agent._say(Pulse(ranks=()))
    assert link.ended

    agent.run()  # raises ControllerGone if the goodbye is lost

    agent.close()
